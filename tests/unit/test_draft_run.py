"""A draft that guesses on, as the orchestrator sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.peers.checking.hints import HintCheck
from orchestrator.peers.draft_run import DraftRun
from slipstream.wire.v1 import draft_pb2, hint_pb2


class Side:
    """Hears what is told to the draft, and what it has said."""

    def __init__(self) -> None:
        self.told: list[draft_pb2.DraftItem] = []
        self.tokens = 0

    def tell(self, item: draft_pb2.DraftItem) -> None:
        self.told.append(item)

    def withdraw(self, run: DraftRun) -> None:
        raise AssertionError

    def note_fault(self, fault: Exception) -> None:
        raise AssertionError

    def take_hints(self, hints: Sequence[hint_pb2.Hint], timing: Any) -> None:
        self.tokens += sum(len(hint.tokens) for hint in hints)

    def fail(self, error: Exception) -> None:
        raise AssertionError


def started() -> tuple[DraftRun, Side]:
    side = Side()
    item = draft_pb2.DraftItem(handle="a", round=1)
    return DraftRun(side, item, HintCheck(2, 4000, 10), side, lambda: None), side


def hint(count: int, *, is_due: bool) -> hint_pb2.Hint:
    made = hint_pb2.Hint(start=2, tokens=[1] * count, survivals=[1.0] * count, source=hint_pb2.HINT_SOURCE_DRAFT)
    if is_due:
        made.next_due.FromMilliseconds(5)
    return made


def test_a_draft_that_rests_is_not_silent() -> None:
    run, _ = started()
    assert run.silence > 0  # nothing came yet
    run.receive(draft_pb2.DraftResult(hints=[hint(3, is_due=True)]))
    assert run.silence > 0
    run.receive(draft_pb2.DraftResult())
    assert run.silence == 0
    run.receive(draft_pb2.DraftResult(hints=[hint(4, is_due=True)]))
    assert run.silence > 0
    run.receive(draft_pb2.DraftResult(hints=[hint(5, is_due=False)]))
    assert run.silence == 0


def test_hints_between_two_commits_are_bounded_but_a_long_line_comes_through() -> None:
    run, side = started()
    for count in range(1, 65):
        run.receive(draft_pb2.DraftResult(hints=[hint(count, is_due=True)]))
    assert side.tokens == 65 * 32
    for _ in range(100):
        run.receive(draft_pb2.DraftResult(hints=[hint(64, is_due=True)]))
    assert side.tokens < 5000
    run.commit(2, [1], 0.0)
    run.receive(draft_pb2.DraftResult(hints=[hint(64, is_due=True)]))
    assert side.told[0].commit.tokens == [1]
