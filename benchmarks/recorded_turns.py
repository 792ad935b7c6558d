"""Recorded turns as scenarios of the hint simulation.

``slipstream trace SESSION --json`` writes what each step verified and accepted. That says at which
tokens the draft was right. What it does not say is drawn, at the odds of the known tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from slipstream.simulation.scenario import Scenario


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn: its own rate in tokens a second, its prompt's step left out, and its scenario."""

    name: str
    tokens_per_second: float
    scenario: Scenario


def read_turns(file: Path) -> list[RecordedTurn]:
    """Return the turns of a file that have a step with hints. ValueError if it is not the output of
    ``slipstream trace SESSION --json``."""
    try:
        turns = json.loads(file.read_text())["turns"]
        return [turn for each in turns if (turn := _turn(each)) is not None]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is not what slipstream trace SESSION --json prints: {error!r}") from error


def outcomes(rounds: Iterable[dict[str, Any]]) -> tuple[bool | None, ...]:
    """Return for each token of a turn whether the draft's first choice was right; None where no
    hint was verified."""
    found: list[bool | None] = []
    for each in rounds:
        known: list[bool | None] = []
        if each.get("proposer") == "PROPOSER_DRAFT":
            hinted, accepted = each["draft_token_count"], each.get("accepted_token_count", 0)
            known += [True] * accepted + [False] * (accepted < hinted)
        count = each["committed_token_count"]
        found += (known + [None] * count)[:count]
    return tuple(found)


def _turn(turn: dict[str, Any]) -> RecordedTurn | None:
    rounds = turn["rounds"]
    right = outcomes(rounds)
    known = [outcome for outcome in right if outcome is not None]
    verified = [each for each in rounds[1:] if each.get("proposer") == "PROPOSER_DRAFT"]
    drafts = [(work, each["draft_token_count"]) for each in verified for work in _works(each, "KIND_PROPOSE")]
    if not known or not drafts:
        return None
    seconds = sum(_seconds(each["total"]) for each in rounds[1:])
    scenario = Scenario(
        token_count=len(right),
        recorded=right,
        acceptance=sum(known) / len(known),
        verify=median(_seconds(work["forward"]) for each in verified for work in _works(each, "KIND_VERIFY")),
        verify_row=0.0,  # it is in the forward
        has_branches=False,  # nothing tells of second choices
        draft=median(_seconds(work["forward"]) / count for work, count in drafts),
        round_trip=median(_seconds(work["network"]) for work, _ in drafts),
    )
    tokens = len(right) - rounds[0]["committed_token_count"]
    return RecordedTurn(f"turn {turn['turn']}", tokens / seconds, scenario)


def _works(each: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [work for work in each["exchanges"] if work["kind"] == kind]


def _seconds(duration: str) -> float:
    """Return a protobuf duration's seconds."""
    return float(duration.removesuffix("s"))
