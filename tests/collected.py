"""Collected positions for tests: what a target chooses after some prompts, by transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slipstream.distilling.records import MOST_LIKELIEST, NO_HINT, SequenceRecord, TargetFacts
from slipstream.distilling.shard_writer import ClaimedFolder, ShardWriter
from slipstream.distilling.targets import sampled_digest
from slipstream.hosting.tokenizer_files import load_tokenizer_files

WEIGHTS = "f" * 64


@torch.no_grad()
def record_of(target: Any, prompt: Sequence[int], count: int) -> SequenceRecord:
    """Return what a target chooses after a prompt, at temperature 0."""
    tokens = [*prompt]
    ids, logprobs = [], []
    for _ in range(count):
        likeliest = target(torch.tensor([tokens])).logits[0, -1].log_softmax(-1).topk(MOST_LIKELIEST)
        ids.append(likeliest.indices.numpy())
        logprobs.append(likeliest.values.numpy())
        tokens.append(int(ids[-1][0]))
    chosen = np.array(tokens[len(prompt) :], dtype=np.int32)
    return SequenceRecord(
        np.array(tokens, dtype=np.int32),
        np.arange(len(prompt), len(tokens), dtype=np.int32),
        np.stack(ids).astype(np.int32),
        np.stack(logprobs).astype(np.float32),
        chosen,
        np.full(count, NO_HINT, dtype=np.int32),
    )


def write(folder: Path, target: Path, records: Sequence[SequenceRecord], *, with_text: bool = True) -> Path:
    """Write a folder of shards, whose target has the tokenizer and the weights of a directory."""
    tokenizer = load_tokenizer_files(str(target))
    facts = TargetFacts(
        "a target", WEIGHTS, tokenizer.fingerprint, 3, tokenizer.token_count, sampled_digest(str(target))
    )
    writer = ShardWriter(ClaimedFolder(folder), facts, max_bytes=2**30, with_text=with_text)
    for record in records:
        writer.add(record)
    writer.flush()
    writer.close()
    return folder
