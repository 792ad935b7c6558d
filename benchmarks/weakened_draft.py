"""A draft that is right as often as real ones are: the embedded draft with noise in its weights.

The noise is normal, as a share of each matrix's own spread. The share is searched for: at
temperature 0 the draft's likeliest token should be the target's in the wanted share of an answer's
positions. Run as ``python -m benchmarks.weakened_draft 0.7 build/draft-0.7``.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.weights import copy_all_but_weights
from slipstream.hosting.tokenizer_files import embedded_directory
from training import corpus
from training.dialogues import held_out_question

_QUESTIONS = 60
_HALVINGS = 10
_MOST_NOISE = 1.0


@torch.inference_mode()
def answered(target: Any, tokenizer: Any, count: int) -> list[tuple[torch.Tensor, int]]:
    """Return token ids ``[1, length]`` of questions with the target's own answers, and the
    questions' lengths."""
    entries = corpus.read(embedded_directory("target").parent / "symbols.jsonl")
    texts = []
    for entry in track(random.Random(7).sample(entries, count), "the target answers"):
        chat = tokenizer.apply_chat_template(held_out_question(entry), add_generation_prompt=True, return_dict=False)
        asked = torch.tensor([chat])
        whole = target.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=64, do_sample=False)
        texts.append((whole, asked.shape[1]))
    return texts


@torch.inference_mode()
def agreement(draft: Any, texts: Sequence[tuple[torch.Tensor, int]]) -> float:
    """Return the share of the answers' tokens that the draft would have proposed."""
    right = total = 0
    for whole, asked in texts:
        guesses = draft(whole[:, :-1]).logits[0, asked - 1 :].argmax(dim=-1)
        right += int((guesses == whole[0, asked:]).sum())
        total += len(guesses)
    return right / total


def weaken(draft: Any, weights: dict[str, torch.Tensor], share: float) -> None:
    """Give a draft its own ``weights`` plus noise; the same noise, scaled, each time."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(weights[name] + (noise * weights[name].std() * share if weight.ndim == 2 else 0))


def build(wanted: float, directory: Path) -> tuple[float, float]:
    """Write the draft. Returns its share of noise and its agreement."""
    source = embedded_directory("draft")
    tokenizer = AutoTokenizer.from_pretrained(source)
    target = AutoModelForCausalLM.from_pretrained(embedded_directory("target"), dtype=torch.float32).eval()
    draft = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    texts = answered(target, tokenizer, _QUESTIONS)
    weights = {name: weight.detach().clone() for name, weight in draft.named_parameters()}
    low, high = 0.0, _MOST_NOISE
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weaken(draft, weights, middle)
        low, high = (middle, high) if agreement(draft, texts) > wanted else (low, middle)
    weaken(draft, weights, high)
    draft.to(torch.bfloat16).save_pretrained(directory)
    copy_all_but_weights(source, directory)
    return high, agreement(draft.to(torch.float32), texts)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agreement", type=float, help="share of tokens at which it is to be right, like 0.7")
    parser.add_argument("directory", type=Path, help="where to write it")
    options = parser.parse_args()
    if not 0 < options.agreement < 1:
        parser.error("agreement must be between 0 and 1")
    share, reached = build(options.agreement, options.directory)
    print(f"{options.directory}: noise of {share:.3f} of each matrix' spread, right at {reached:.3f} of the tokens")


if __name__ == "__main__":
    main()
