"""What stated odds are worth follows what the target chose."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from slipstream.engine.hinting.calibration import Calibration, survivals, temperature_class
from slipstream.engine.hinting.hints import Candidate, Hint, Source

DRAFT = Source.DRAFT, 1


def judged(odds: float, share: float, count: int, calibration: Calibration | None = None) -> Calibration:
    draw = random.Random(3)
    calibration = calibration or Calibration()
    for _ in range(count):
        calibration.judge(DRAFT, odds, draw.random() < share)
    return calibration


def test_a_new_maker_is_taken_at_its_word() -> None:
    assert Calibration().factor(DRAFT) == Calibration().mean(DRAFT) == 1


def test_stated_odds_are_corrected_by_outcomes() -> None:
    calibration = judged(0.99, 0.7, 400)
    assert calibration.factor(DRAFT) == pytest.approx(0.7, abs=0.15)
    assert calibration.mean(DRAFT) == pytest.approx(0.7, abs=0.15)


def test_a_maker_that_is_never_right_is_worth_nothing_soon() -> None:
    assert judged(0.9, 0, 100).factor(DRAFT) < 0.1
    assert judged(0.9, 0, 400).factor(DRAFT) < 0.01


def test_a_draft_that_recovers_is_trusted_within_200_tokens() -> None:
    calibration = judged(0.9, 0, 2000)
    assert judged(0.9, 0.9, 200, calibration).factor(DRAFT) > 0.85


def test_a_maker_and_a_class_have_their_own_factor() -> None:
    calibration = judged(0.9, 0, 100)
    assert calibration.factor(DRAFT, 1) == calibration.factor((Source.DRAFT, 2)) == 1


def test_a_zero_that_was_stated_is_no_fault() -> None:
    assert judged(0, 0, 5000).factor(DRAFT) < float("inf")


def candidate(odds: Sequence[float], source_id: int = 1) -> Candidate:
    hint = Hint(0, tuple(range(len(odds))), (0.5,) * len(odds), Source.DRAFT, source_id)
    return Candidate(hint, hint.tokens, tuple(odds))


def best(calibration: Calibration, candidates: Sequence[Candidate], limit: int = 64) -> tuple[Candidate, list[float]]:
    found = calibration.best(candidates, limit)
    assert found is not None
    return found


def test_the_best_candidate_is_the_one_expected_to_bring_most() -> None:
    short, long, again = candidate([0.9]), candidate([0.8, 0.8], 2), candidate([0.8, 0.8], 3)
    calibration = Calibration()
    assert best(calibration, [short, long])[0] is long
    assert best(calibration, [short, long])[1] == pytest.approx([0.8, 0.64])
    assert best(calibration, [short, long], limit=1)[0] is short
    assert best(calibration, [short, long, again])[0] is long
    for _ in range(64):
        calibration.judge((Source.DRAFT, 2), 0.8, False)
    assert best(calibration, [short, long])[0] is short


def test_no_candidate_is_best_if_none_is_worth_a_thought() -> None:
    assert Calibration().best([], 64) is None
    assert Calibration().best([candidate([0.001])], 64) is None
    assert Calibration().best([candidate([0.9])], 0) is None


def test_survivals_are_corrected_products() -> None:
    assert survivals([1.0, 1.0], 2.0) == [1.0, 1.0]
    assert survivals([0.8, 0.8], 0.5) == pytest.approx([0.4, 0.16])
    assert survivals([0.5, 0.001, 1.0], 1.0) == [0.5]


def test_temperatures_fall_into_few_classes() -> None:
    assert [temperature_class(t) for t in (0, 0.3, 0.5, 0.8, 1.0, 1.2, 2.0, 9.0)] == [0, 1, 1, 2, 2, 3, 4, 4]


def test_makers_are_bounded() -> None:
    calibration = Calibration()
    for number in range(1000):
        calibration.judge((Source.OTHER, number), 0.9, False)
    assert calibration.factor((Source.OTHER, 999)) < 1
    assert calibration.factor((Source.OTHER, 0)) == 1
