"""Faults of hints: they reach every kind of hint, and each is one that a verifier takes in."""

from __future__ import annotations

import random

import pytest

from proving.hint_faults import HintsContradicted, HintsLate, HintsMadeUp, HintsSpoiled
from proving.run_faults import RunFault
from slipstream.hosting.hint_wire import hint_of
from slipstream.wire.v1 import hint_pb2, verifier_pb2

KEY = {"handle": "h", "round": 3}
START = verifier_pb2.RunItem(
    **KEY, start=verifier_pb2.StartRun(base_length=10, tail=[1, 2], until_length=50, granted_length=50)
)


def hint(start: int) -> verifier_pb2.RunItem:
    made = hint_pb2.Hint(start=start, tokens=[5, 6, 7], survivals=[0.9, 0.8, 0.7], source="HINT_SOURCE_DRAFT")
    return verifier_pb2.RunItem(**KEY, hint=made)


def part(position: int, *, is_last: bool = False) -> verifier_pb2.RunResult:
    end = verifier_pb2.RUN_END_STOPPED if is_last else verifier_pb2.RUN_END_UNSPECIFIED
    return verifier_pb2.RunResult(**KEY, position=position, tokens=[5, 6], end=end)


class Traffic:
    """What a fault makes of a run with 200 parts and a hint after each."""

    def __init__(self, fault: type[RunFault], part_count: int = 200) -> None:
        self.strikes = 0
        self.fault = fault(random.Random(7), self._strike)
        self.sent = self.fault.run_items([START])
        for position in range(12, 12 + 2 * part_count, 2):
            results, also = self.fault.run_results([part(position)])
            assert results == [part(position)]
            self.sent += [*also, *self.fault.run_items([hint(position + 2)])]
        self.hints = [item.hint for item in self.sent if item.HasField("hint")]

    def _strike(self, count: int) -> None:
        self.strikes += count


@pytest.mark.parametrize("fault", [HintsMadeUp, HintsLate, HintsContradicted, HintsSpoiled])
def test_each_hint_is_well_formed_and_of_its_run(fault: type[RunFault]) -> None:
    traffic = Traffic(fault)
    assert traffic.sent[0] == START
    assert traffic.strikes >= 100
    for item, message in zip(traffic.sent[1:], traffic.hints, strict=True):
        assert (item.handle, item.round) == ("h", 3)
        hint_of(message, 4096)


@pytest.mark.parametrize("fault", [HintsMadeUp, HintsLate, HintsContradicted, HintsSpoiled])
def test_a_run_that_has_ended_is_left_alone(fault: type[RunFault]) -> None:
    for ends_by_closing in (False, True):
        traffic = Traffic(fault, 20)
        if ends_by_closing:
            traffic.fault.closes("h")
        else:
            traffic.fault.run_results([part(52, is_last=True)])
        assert traffic.fault.run_results([part(54)]) == ([part(54)], [])


def test_hints_are_made_up_for_every_place_and_with_every_confidence() -> None:
    made = [message for message in Traffic(HintsMadeUp).hints if message.tokens[:3] != [5, 6, 7]]
    starts = {message.start for message in made}
    assert 0 in starts and any(48 <= start < 50 for start in starts) and any(start > 50 for start in starts)
    assert {tuple(set(message.survivals)) for message in made} >= {(1.0,), (0.0,)}
    assert max(len(message.tokens) for message in made) == 64
    assert len({message.source for message in made}) == 6
    assert any(message.tokens[:2] == [5, 6] for message in made), "right, and then wrong"


def test_late_hints_are_repeated_lost_and_out_of_order() -> None:
    starts = [message.start for message in Traffic(HintsLate).hints]
    assert len(starts) > len(set(starts)) and starts != sorted(starts)
    assert len(set(starts)) < 200


def test_contradicting_hints_come_from_the_same_maker_and_from_a_second_draft() -> None:
    hints = Traffic(HintsContradicted).hints
    assert len(hints) == 400
    others = [message for message in hints if set(message.survivals) == {1.0}]
    assert len(others) == 200 and {message.source_id for message in others} == {0, 1}
    assert {message.tokens[0] == 5 for message in others} == {True, False}


def test_spoiled_hints_are_right_for_some_tokens_at_most() -> None:
    hints = Traffic(HintsSpoiled).hints
    assert len(hints) == 200 and not any(message.tokens[:3] == [5, 6, 7] for message in hints)
    assert {message.tokens[0] == 5 for message in hints} == {True, False}
