"""Prompts are held out whole, and no caller decides which others are held out with theirs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from slipstream.distilling.examples import split
from slipstream.distilling.records import NO_HINT, SequenceRecord

ANSWER = [7, 8, 9, 7, 8, 9, 7, 8, 9]


def a_record(prompt: Sequence[int], answer: Sequence[int]) -> SequenceRecord:
    count = len(answer)
    return SequenceRecord(
        np.array([*prompt, *answer], dtype=np.int32),
        np.arange(len(prompt), len(prompt) + count, dtype=np.int32),
        np.zeros((count, 64), dtype=np.int32),
        np.zeros((count, 64), dtype=np.float32),
        np.array(answer, dtype=np.int32),
        np.full(count, NO_HINT, dtype=np.int32),
    )


def prompt_of(record: SequenceRecord) -> list[int]:
    return [int(token) for token in record.tokens[: record.positions[0]]]


def held_out_together(records: Sequence[SequenceRecord]) -> list[set[int]]:
    """Return the groups that a split never divides, as indexes of their records."""
    places = {id(record): index for index, record in enumerate(records)}
    sides: list[list[bool]] = [[] for _ in records]
    for share in np.linspace(0, 1, 2 * len(records) + 1):
        _, held = split(records, float(share))
        held_places = {places[id(record)] for record in held}
        for index, side in enumerate(sides):
            side.append(index in held_places)
    return [{other for other, its in enumerate(sides) if its == side} for side in sides]


def test_a_prompt_of_a_start_token_takes_no_other_prompt_with_it() -> None:
    honest = [a_record([1, 5, number, 6], ANSWER) for number in range(10, 50)]
    for poison in ([1], [1, 5]):
        for answer in ([5], [5, 10], [10, 6], ANSWER):
            training, held = split([*honest, a_record(poison, answer)], 0.1)
            assert len(held) == 4 and len(training) == 37


def test_turns_of_a_session_and_equal_prompts_stay_together() -> None:
    first = a_record([1, 5, 6], ANSWER)
    second = a_record([*first.tokens, 2, 5, 11], ANSWER[1:])
    third = a_record([*second.tokens, 2, 5, 12], [3])
    again = a_record([1, 5, 6], [4])
    rendered_otherwise = a_record([1, 5, 6, *ANSWER[:8], 30, 2], ANSWER)
    others = [a_record([1, 5, 6, number], ANSWER) for number in range(20, 25)]
    records = [*others, third, rendered_otherwise, again, second, first]
    groups = held_out_together(records)
    assert groups == [{0}, {1}, {2}, {3}, {4}, *[{5, 6, 7, 8, 9}] * 5]


def test_groups_are_those_of_a_search_through_all_pairs() -> None:
    rng = random.Random(0)
    for _ in range(40):
        lengths = [(rng.randint(1, 24), rng.randint(1, 12)) for _ in range(20)]
        records = [a_record(rng.choices([1, 2], [9, 1], k=p), rng.choices([1, 2], [9, 1], k=a)) for p, a in lengths]
        group: dict[int, str] = {}
        for index, record in sorted(enumerate(records), key=lambda pair: len(prompt_of(pair[1]))):
            prompt = prompt_of(record)
            begun = [
                (len(start), group[other])
                for other, its in enumerate(records)
                for start in [[int(token) for token in its.tokens[: its.positions[0] + 8]]]
                if len(its.positions) >= 8 and prompt[: len(start)] == start
            ]
            group[index] = max(begun)[1] if begun else str(prompt)
        expected = [{other for other in group if group[other] == group[index]} for index in range(len(records))]
        if len({*group.values()}) > 1:
            assert held_out_together(records) == expected
