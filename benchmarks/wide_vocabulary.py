"""A target that says exactly what the embedded one says, with a real model's vocabulary: rows added to its head never win.

A row added must be unlikely after every text. So a direction is looked for on whose far side all hidden states lie that the
model was seen in (the perceptron, always corrected by the state that is worst off), and the added rows point away from
them. Tied embeddings are untied; added tokens embed as nothing. The embedded draft has no such direction: its hidden states
lie all around. It drafts for the wide target as it is, with its own few rows.

Run as ``python -m benchmarks.wide_vocabulary build/wide-target``.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.weights import copy_all_but_weights
from slipstream.hosting.tokenizer_files import embedded_directory
from training import corpus
from training.dialogues import draw_pass

ROWS = 128_256
_BELOW = 40.0
"""How far an added token's logit lies below the largest of the model's own, at least, wherever it was looked."""
_SPREAD = 0.5
"""Added rows are up to this much longer than they must be: no two say the same."""
_CORRECTIONS = 50_000
_NONSENSE = 64
"""Sequences of random tokens among the texts: what a target checks may be anything."""


@torch.inference_mode()
def states_of(model: Any, tokenizer: Any, dialogue_count: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states before the head ``[n, hidden]`` after dialogues and nonsense, and the largest logit of each."""
    entries = corpus.read(embedded_directory("target").parent / "symbols.jsonl")
    rng = random.Random(0)
    dialogues = list(draw_pass(entries, rng))[:dialogue_count]
    sequences = [tokenizer.apply_chat_template(dialogue, return_dict=False)[:1024] for dialogue in dialogues]
    size = model.config.vocab_size
    sequences += [[rng.randrange(size) for _ in range(128)] for _ in range(_NONSENSE)]
    hidden = [model.model(torch.tensor([ids])).last_hidden_state[0] for ids in track(sequences, "states")]
    states = torch.cat(hidden)
    return states, model.lm_head(states).amax(dim=-1)


def direction_of(states: torch.Tensor) -> torch.Tensor:
    """A unit vector ``[hidden]`` along which every state lies; ValueError if none is found."""
    units = states / states.norm(dim=-1, keepdim=True)
    direction: torch.Tensor = units.mean(dim=0)
    for _ in range(_CORRECTIONS):
        along = units @ direction
        worst = int(along.argmin())
        if float(along[worst]) > 0.02 * float(direction.norm()):
            break
        direction = direction + units[worst]
    direction = direction / direction.norm()
    if not float((units @ direction).min()) > 0:
        raise ValueError("no direction has all hidden states on one side")
    return direction


def build(directory: Path, rows: int = ROWS, dialogue_count: int = 256) -> float:
    """Write the model; returns how far its added tokens lie below its own, at least."""
    source = embedded_directory("target")
    small = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    states, largest = states_of(small, AutoTokenizer.from_pretrained(source), dialogue_count)
    direction = direction_of(states)
    along = states @ direction
    length = float(((_BELOW - largest).clamp(min=0) / along).max())
    config = AutoConfig.from_pretrained(source)
    own, config.vocab_size, config.tie_word_embeddings = config.vocab_size, rows, False
    wide = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    kept = {name: weight for name, weight in small.state_dict().items() if name not in _HEADS}
    wide.load_state_dict(kept, strict=False)
    torch.manual_seed(0)
    with torch.no_grad():
        wide.model.embed_tokens.weight.zero_()
        wide.model.embed_tokens.weight[:own] = small.model.embed_tokens.weight
        wide.lm_head.weight[:own] = small.lm_head.weight
        longer = 1 + _SPREAD * torch.rand(rows - own, 1)
        wide.lm_head.weight[own:] = -direction * length * longer
    wide.to(torch.bfloat16).save_pretrained(directory)
    copy_all_but_weights(source, directory)
    added = along * -length
    return float((largest - added).min())


_HEADS = ("model.embed_tokens.weight", "lm_head.weight")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS, help="of the vocabulary")
    options = parser.parse_args()
    below = build(options.directory, options.rows)
    print(f"{options.directory}: {options.rows:,} tokens, those added at least {below:.0f} below the likeliest")


if __name__ == "__main__":
    main()
