"""Collected sequences as examples: which are held out, and which stand in a batch together."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from slipstream.distilling.records import SequenceRecord


class Batch(NamedTuple):
    """Some sequences, padded at their right ends, and their R collected rows."""

    ids: torch.Tensor
    """int64 [sequences, length]."""
    places: torch.Tensor
    """int64 [R]: where in the flattened ``ids`` the token before each row stands."""
    top_ids: torch.Tensor
    """int64 [R, K]."""
    top_logprobs: torch.Tensor
    """float32 [R, K]."""


def cut(record: SequenceRecord, max_length: int) -> SequenceRecord:
    """Return a sequence's first ``max_length`` tokens, with the rows that lie in them."""
    count = int(np.searchsorted(record.positions, max_length, side="right"))
    return SequenceRecord(
        record.tokens[:max_length],
        record.positions[:count],
        record.top_ids[:count],
        record.top_logprobs[:count],
        record.chosen[:count],
        record.hints[:count],
    )


def split(records: Iterable[SequenceRecord], share: float) -> tuple[list[SequenceRecord], list[SequenceRecord]]:
    """Divide sequences into those to train on and those held out, by a hash of their prompts.

    A prompt that begins with another whole prompt stays with it: they are turns of a session, or
    the same prompt twice.
    """
    by_prompt: dict[bytes, list[SequenceRecord]] = {}
    leader: bytes | None = None
    for prompt, record in sorted(((_prompt(record), record) for record in records), key=lambda pair: pair[0]):
        if leader is None or not prompt.startswith(leader):
            leader = prompt
        by_prompt.setdefault(leader, []).append(record)
    order = sorted(by_prompt, key=lambda prompt: hashlib.sha256(prompt).digest())
    held_count = min(len(order) - 1, max(1, round(share * len(order))))
    held = [record for prompt in order[:held_count] for record in by_prompt[prompt]]
    return [record for prompt in order[held_count:] for record in by_prompt[prompt]], held


def _prompt(record: SequenceRecord) -> bytes:
    return record.tokens[: record.positions[0]].astype(">i4").tobytes()


def in_order(records: Sequence[SequenceRecord], most_tokens: int) -> list[list[SequenceRecord]]:
    """Divide sequences into batches of at most ``most_tokens`` with the padding, or of one
    sequence. Sequences of similar length stand together."""
    batches: list[list[SequenceRecord]] = [[]]
    for record in sorted(records, key=lambda record: len(record.tokens)):
        if batches[-1] and (len(batches[-1]) + 1) * len(record.tokens) > most_tokens:
            batches.append([])
        batches[-1].append(record)
    return batches


def shuffled(records: Sequence[SequenceRecord], most_tokens: int, rng: random.Random) -> list[list[SequenceRecord]]:
    """Divide sequences into batches as `in_order`, with other ones of a length together each time,
    and in a random order."""
    batches = in_order(rng.sample(records, len(records)), most_tokens)
    rng.shuffle(batches)
    return batches


def collate(records: Sequence[SequenceRecord], device: str) -> Batch:
    """Return a batch on a device."""
    width = max(len(record.tokens) for record in records)
    ids = np.zeros((len(records), width), dtype=np.int64)
    for row, record in enumerate(records):
        ids[row, : len(record.tokens)] = record.tokens
    places = [row * width + record.positions.astype(np.int64) - 1 for row, record in enumerate(records)]
    arrays = (
        ids,
        np.concatenate(places),
        np.concatenate([record.top_ids for record in records]).astype(np.int64),
        np.concatenate([record.top_logprobs for record in records]),
    )
    return Batch(*(torch.from_numpy(array).to(device) for array in arrays))
