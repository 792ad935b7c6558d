"""Collected sequences as examples: which are held out, and which stand in a batch together."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from slipstream.distilling.records import SequenceRecord

_ANSWER_TOKENS = 8
"""Tokens of an answer that tell a session's next turn from another prompt with the same start."""


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

    Records of one prompt stay together, and so do turns of a session: a prompt stays with another
    one that it begins with, if that one's first `_ANSWER_TOKENS` answer tokens come next. A prompt
    alone proves nothing. Many prompts begin with the same system message or start token.
    """
    by_leader: dict[bytes, list[SequenceRecord]] = {}
    leader_of: dict[bytes, bytes] = {}
    begun: list[tuple[bytes, bytes]] = []
    """Beginnings of answers that the text begins with, the shortest first, and their leaders."""
    for text, is_prompt, record in sorted(_marks(records), key=lambda mark: mark[:2]):
        while begun and not text.startswith(begun[-1][0]):
            begun.pop()
        if is_prompt:
            leader = leader_of[text] = begun[-1][1] if begun else text
            by_leader.setdefault(leader, []).append(record)
        else:
            begun.append((text, leader_of[_first_tokens(record, 0)]))
    order = sorted(by_leader, key=lambda prompt: hashlib.sha256(prompt).digest())
    held_count = min(len(order) - 1, max(1, round(share * len(order))))
    held = [record for prompt in order[:held_count] for record in by_leader[prompt]]
    return [record for prompt in order[held_count:] for record in by_leader[prompt]], held


def _marks(records: Iterable[SequenceRecord]) -> Iterator[tuple[bytes, bool, SequenceRecord]]:
    """Yield each prompt, with True, and where an answer is long enough the prompt with the answer's
    beginning. In the order of bytes a text stands before all that begin with it."""
    for record in records:
        yield _first_tokens(record, 0), True, record
        if len(record.tokens) >= record.positions[0] + _ANSWER_TOKENS:
            yield _first_tokens(record, _ANSWER_TOKENS), False, record


def _first_tokens(record: SequenceRecord, answer_tokens: int) -> bytes:
    """Return the prompt and some tokens of the answer, as bytes that sort as the tokens do."""
    return record.tokens[: record.positions[0] + answer_tokens].astype(">i4").tobytes()


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
