"""The embedded pair with a real model's vocabulary: its heads padded to 128,256 rows, what it says unchanged.

An added token's row is twice that of a token which the pair never says. So are its logits: far below all others', as those
of the many tokens are that a real model hardly ever says.

Run as ``python -m benchmarks.wide_vocabulary build/wide``, which writes ``build/wide/target`` and ``build/wide/draft``.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from slipstream.hosting.tokenizer_files import embedded_directory

SIZE = 128_256
_NEVER_SAID = 0
"""The token that ends a text in training, of which no dialogue has one."""


def build(role: str, directory: Path, size: int = SIZE) -> None:
    """Write one of the pair."""
    source = embedded_directory(role)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    old = model.get_input_embeddings().weight.detach().clone()
    model.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        weight[: len(old)] = old
        weight[len(old) :] = 2 * old[_NEVER_SAID]
    model.to(torch.bfloat16).save_pretrained(directory)
    for path in source.iterdir():
        if not (directory / path.name).exists() and path.suffix != ".safetensors":
            shutil.copy(path, directory / path.name)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where to write the two")
    parser.add_argument("--size", type=int, default=SIZE, help="rows of their heads")
    options = parser.parse_args()
    for role in ("target", "draft"):
        build(role, options.directory / role, options.size)
        print(f"{options.directory / role}: {options.size:,} rows")


if __name__ == "__main__":
    main()
