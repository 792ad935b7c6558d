"""A recorded turn says where the draft was right, and the simulation goes on from there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recorded_turns import outcomes, read_turns
from slipstream.simulation.simulation import simulate


def step(count: int, hinted: int = 0, accepted: int = 0, proposer: str = "PROPOSER_DRAFT") -> dict[str, Any]:
    verify = {"kind": "KIND_VERIFY", "forward": "0.025s", "network": "0.001s"}
    propose = {"kind": "KIND_PROPOSE", "forward": f"{0.003 * hinted:g}s", "network": "0.01s"}
    said = {"draft_token_count": hinted, "accepted_token_count": accepted, "proposer": proposer} if hinted else {}
    return {"total": "0.03s", "committed_token_count": count, "exchanges": [verify, *[propose] * bool(hinted)], **said}


def written(file: Path, *rounds: dict[str, Any]) -> Path:
    file.write_text(json.dumps({"turns": [{"turn": 3, "rounds": [step(1), *rounds]}]}))
    return file


def test_a_step_says_which_of_its_tokens_the_draft_had_right() -> None:
    rounds = [step(1), step(3, 4, 2), step(4, 3, 3), step(2), step(2, 2, 1, "PROPOSER_NGRAM"), step(1, 4)]
    unknown = [None] * 2
    assert outcomes(rounds) == (None, True, True, False, True, True, True, None, *unknown, *unknown, False)


def test_a_turn_keeps_its_times_and_its_rate(tmp_path: Path) -> None:
    (turn,) = read_turns(written(tmp_path / "turn.json", step(3, 4, 2), step(3, 2, 2)))
    assert turn.tokens_per_second == pytest.approx(6 / 0.06) and turn.name == "turn 3"
    scenario = turn.scenario
    assert (scenario.verify, scenario.draft, scenario.round_trip) == pytest.approx((0.025, 0.003, 0.01))
    assert (scenario.token_count, scenario.acceptance) == (7, 0.8)


@pytest.mark.parametrize("accepted", [4, 0])
def test_hints_do_as_well_as_the_recorded_draft(accepted: int, tmp_path: Path) -> None:
    (turn,) = read_turns(written(tmp_path / "turn.json", *[step(1 + accepted, 4, accepted)] * 40))
    plain = simulate(replace(turn.scenario, is_hinted=False)).tokens_per_second
    gain = simulate(turn.scenario).tokens_per_second / plain
    assert gain > 3 if accepted else 0.95 < gain < 1.05


def test_turns_without_hints_are_left_out(tmp_path: Path) -> None:
    assert read_turns(written(tmp_path / "turn.json", step(4))) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"turns": [{}]}', '{"turns": [{"rounds": 3}]}'])
def test_another_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "turn.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"turn\.json is not what slipstream trace SESSION --json prints"):
        read_turns(file)
