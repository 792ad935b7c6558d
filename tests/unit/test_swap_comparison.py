"""The figures of two drafts in a swap: those of several processes, standard errors, and a verdict
that chance seldom makes."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import pytest

from orchestrator.contract.drafts import draft_message
from orchestrator.rounds.draft_figures import DraftFigures, TurnFigures
from orchestrator.rounds.draft_status import DraftState, DraftStatus
from slipstream.cli.swapping.comparison import LEAST_TURNS, Figures, Tally, Verdict, judge
from slipstream.ratio_sums import RatioSums
from slipstream.v1 import operator_pb2


def figures(turns: int, acceptance: float, seed: int = 0, rate: float = 100.0, spread: float = 0.2) -> DraftFigures:
    """Return the figures of random turns, each with a rate of its own."""
    chance, sums = random.Random(seed), DraftFigures(session_count=turns)
    for _ in range(turns):
        steps = chance.randint(10, 30)
        accepted = sum(chance.random() < acceptance for _ in range(4 * steps))
        tokens = steps + accepted
        seconds = tokens / (rate * (1 + spread * (chance.random() - 0.5)))
        lengths = Counter({4: 1}), Counter({accepted // steps: 1})
        sums.record_turn(TurnFigures(tokens, steps, 4 * steps, accepted, tokens, seconds, *lengths))
    return sums


def message(drafts: dict[str, DraftFigures], process_id: str = "p") -> operator_pb2.ProcessDrafts:
    status = [DraftStatus(name, DraftState.SERVING, "m", "w", None, 0, each) for name, each in drafts.items()]
    return operator_pb2.ProcessDrafts(process_id=process_id, drafts=map(draft_message, status))


def told(figures: DraftFigures) -> Figures:
    return Figures.of(message({"d": figures}).drafts[0].figures)


def test_a_ratio_has_the_standard_error_that_repetitions_show() -> None:
    ratios = [told(figures(40, 0.5, seed)).acceptance.ratio for seed in range(200)]
    values = [ratio.value for ratio in ratios if ratio is not None]
    errors = [ratio.error for ratio in ratios if ratio is not None]
    assert statistics.mean(values) == pytest.approx(0.5, abs=0.01)
    assert statistics.mean(errors) == pytest.approx(statistics.stdev(values), rel=0.15)


def test_one_turn_has_no_standard_error_and_none_has_no_ratio() -> None:
    assert RatioSums().ratio is None
    ratio = RatioSums(3.0, 4.0, 9.0, 12.0, 16.0, 1).ratio
    assert ratio is not None and ratio.value == 0.75


@pytest.mark.parametrize(
    ("new", "old", "verdict"),
    [
        ((0.8, 100.0), (0.5, 100.0), Verdict.BETTER),
        ((0.5, 100.0), (0.8, 100.0), Verdict.WORSE),
        ((0.5, 140.0), (0.5, 100.0), Verdict.BETTER),
        ((0.8, 60.0), (0.5, 100.0), Verdict.WORSE),
    ],
)
def test_tokens_a_second_decide_and_else_tokens_a_step(
    new: tuple[float, float], old: tuple[float, float], verdict: Verdict
) -> None:
    one, other = figures(60, new[0], 1, new[1]), figures(60, old[0], 2, old[1])
    assert judge(told(one), told(other))[0] is verdict


def test_chance_seldom_decides_between_equal_drafts() -> None:
    """One pair in fifty is to be expected; more than 12 of 200 come once in a thousand runs."""
    verdicts = [judge(told(figures(40, 0.6, 2 * s)), told(figures(80, 0.6, 2 * s + 1)))[0] for s in range(200)]
    assert sum(verdict is not Verdict.UNDECIDED for verdict in verdicts) <= 12


def test_few_turns_decide_nothing() -> None:
    verdict, why = judge(told(figures(LEAST_TURNS - 1, 0.9)), told(figures(60, 0.1)))
    assert verdict is Verdict.UNDECIDED and f"{LEAST_TURNS - 1} turns" in why


def test_a_tally_counts_from_its_first_look_and_over_processes() -> None:
    tally = Tally()
    before = figures(10, 0.5)
    tally.take([message({"old": before}), message({"old": before}, "q")])
    after = figures(10, 0.5)
    after.merge(figures(5, 0.5, 3))
    tally.take([message({"old": after, "new": figures(3, 0.5)}), message({"old": before}, "q")])
    assert (tally.of(["old"]).turn_count, tally.of(["new"]).turn_count) == (5, 0)
    tally.take([message({"old": after, "new": figures(7, 0.5)}), message({"old": after}, "q")])
    assert (tally.of(["old"]).turn_count, tally.of(["new"]).turn_count) == (10, 4)
    assert tally.of(["old", "new"]).turn_count == 14
    assert sum(tally.of(["old"]).drafted) == 40


def test_counts_of_a_process_that_was_started_again_stay() -> None:
    tally = Tally()
    tally.take([message({"new": DraftFigures()})])
    tally.take([message({"new": figures(8, 0.5)})])
    tally.take([message({"new": DraftFigures()}, "again")])
    tally.take([message({"new": figures(3, 0.5)}, "again")])
    assert tally.of(["new"]).turn_count == 11


def test_counts_of_a_draft_that_was_added_again_stay() -> None:
    tally = Tally()
    tally.take([message({"new": DraftFigures()})])
    tally.take([message({"new": figures(8, 0.5)})])
    tally.take([message({"new": figures(2, 0.5)})])
    tally.take([message({"new": figures(3, 0.5)})])
    assert tally.of(["new"]).turn_count == 11
