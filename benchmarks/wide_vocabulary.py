"""The embedded pair with more rows in its heads: the same function, at a real model's vocabulary.

No added token may ever win, in any context. So the pair gets hidden dimensions of its own for them.
One dimension has the same small number after every token: each embedding holds it, and no layer
writes to it. The final norm makes it large, and the added rows count it against themselves. The
other dimensions stay zero. They make the width a multiple of the heads and of 32, which compiled
forwards need. An RMS norm over D instead of d dimensions sees a mean square that is d/D as large.
So its weights are scaled by sqrt(d/D) and its epsilon by d/D. The added number is too small to
change the mean square.

Run as ``python -m benchmarks.wide_vocabulary 128256 build/wide-pair``, which writes target/ and
draft/.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.weakened_draft import answered
from benchmarks.weights import copy_all_but_weights
from slipstream.hosting.tokenizer_files import embedded_directory

_CONSTANT, _GAIN = 2.0**-9, 2.0**24
"""Value in every token's state and in the final norm. Over any state's root mean square it is
thousands."""


def build(role: str, row_count: int, directory: Path) -> None:
    """Write one model of the pair in bfloat16."""
    source = embedded_directory(role)
    small = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    config = AutoConfig.from_pretrained(source)
    old, rows = config.hidden_size, config.vocab_size
    config.hidden_size, config.vocab_size, config.tie_word_embeddings = old + old // 2, row_count, False
    config.rms_norm_eps *= old / config.hidden_size
    wide = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    known, shrink = dict(small.named_parameters()), math.sqrt(old / config.hidden_size)
    with torch.no_grad():
        for name, weight in wide.named_parameters():
            weight.zero_()
            if name != "lm_head.weight":
                own = known[name]
                weight[tuple(map(slice, own.shape))] = own * shrink if "norm" in name else own
        embeddings = wide.get_input_embeddings().weight
        wide.lm_head.weight[:rows] = embeddings[:rows]
        wide.lm_head.weight[rows:, old] = -1.0
        embeddings[:, old] = _CONSTANT
        wide.model.norm.weight[old] = _GAIN
    wide.to(torch.bfloat16).save_pretrained(directory)
    copy_all_but_weights(source, directory)


@torch.inference_mode()
def same_choices(target: Path, count: int) -> tuple[int, int, int]:
    """Compare ``count`` answers of the embedded target with the wide one's.

    Returns the number of positions, at how many the likeliest token is the same, and at how many an
    added token comes within 20 of it.
    """
    tokenizer = AutoTokenizer.from_pretrained(target)
    own, wide = (_loaded(model) for model in (embedded_directory("target"), target))
    positions = same = near = 0
    for whole, asked in answered(own, tokenizer, count):
        small, large = (model(whole[:, :-1]).logits[0, asked - 1 :].float() for model in (own, wide))
        rows = small.shape[1]
        positions += len(small)
        same += int((small.argmax(dim=-1) == large.argmax(dim=-1)).sum())
        near += int((large[:, rows:].amax(dim=-1) > large.amax(dim=-1) - 20).sum())
    return positions, same, near


def _loaded(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, help="of the heads, like 128256")
    parser.add_argument("directory", type=Path, help="where to write them")
    options = parser.parse_args()
    least = AutoConfig.from_pretrained(embedded_directory("target")).vocab_size
    if options.rows <= least:
        parser.error(f"rows must be more than the pair's {least}")
    for role in track(("target", "draft"), "writing"):
        build(role, options.rows, options.directory / role)
    positions, same, near = same_choices(options.directory / "target", 20)
    print(f"{options.directory}: the same token at {same} of {positions} positions, an added one near at {near}")


if __name__ == "__main__":
    main()
