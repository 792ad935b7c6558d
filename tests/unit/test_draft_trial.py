"""A draft on trial gets its share of the sessions, and no other."""

from __future__ import annotations

import pytest

from orchestrator.rounds.draft_request import SessionDrafting
from orchestrator.rounds.drafts import Drafts, TrialShare, place_of
from tests.scripted_peers import Draft, side_of


def drafts_at(*names: str) -> tuple[Drafts, dict[str, Draft]]:
    """Drafts that have been reached, by name."""
    scripted = {}
    for name in names:
        scripted[name] = draft = Draft()
        draft.address = name
    return Drafts(map(side_of, scripted.values())), scripted


def home(drafts: Drafts, drafting: SessionDrafting, *, begins_turn: bool = True, stays: bool = False) -> str:
    side = drafts.home(drafting, begins_turn=begins_turn, stays=stays)
    assert side is not None
    return side.address


def test_places_are_even_and_the_same_in_all_processes() -> None:
    places = [place_of(f"session-{number}") for number in range(4000)]
    assert all(0 <= place < 1 for place in places)
    assert sum(place < 0.2 for place in places) == pytest.approx(800, abs=120)
    assert place_of("a") == pytest.approx(0.26258956)
    assert place_of("\udcff") != place_of("")


def test_sessions_within_the_share_draft_with_the_draft_on_trial_whatever_the_load() -> None:
    drafts, _ = drafts_at("old", "new")
    drafts.trial = TrialShare("new", 0.25)
    for place, expected in ((0.0, "new"), (0.24, "new"), (0.25, "old"), (0.9, "old")):
        for _ in range(4):
            assert home(drafts, SessionDrafting(place)) == expected


def test_a_session_moves_when_its_next_turn_begins() -> None:
    drafts, _ = drafts_at("old", "new")
    drafts.trial = TrialShare("new", 0.0)
    session = SessionDrafting(0.1)
    assert home(drafts, session) == "old"
    drafts.trial = TrialShare("new", 0.2)
    assert home(drafts, session, begins_turn=False) == "old"
    assert home(drafts, session) == "new" and drafts.move_count == 0
    drafts.trial = TrialShare("new", 0.05)
    assert home(drafts, session, begins_turn=False) == "new"
    assert home(drafts, session) == "old"


def test_a_session_that_stays_takes_no_part() -> None:
    drafts, _ = drafts_at("old", "new")
    drafts.trial = TrialShare("new", 1.0)
    session = SessionDrafting(0.1)
    assert home(drafts, session, stays=True) == "old"
    assert home(drafts, session, stays=True) == "old"


def test_if_the_draft_on_trial_is_away_its_share_drafts_with_the_others() -> None:
    drafts, _ = drafts_at("old", "new")
    drafts.trial = TrialShare("new", 0.5)
    session = SessionDrafting(0.1)
    assert home(drafts, session) == "new"
    next(side for side in drafts.sides if side.address == "new")._breaker.record_failure()
    assert home(drafts, session, begins_turn=False) == "old"


def test_sessions_of_a_removed_draft_move_in_the_middle_of_their_turns() -> None:
    drafts, _ = drafts_at("old", "new")
    drafts.trial = TrialShare("new", 1.0)
    session = SessionDrafting(0.1)
    assert home(drafts, session) == "new"
    drafts.trial = None
    drafts.retire("new")
    assert home(drafts, session, begins_turn=False) == "old"
    assert drafts.remove_retired() == ["new"]


def test_a_name_of_several_services_is_one_draft() -> None:
    drafts, _ = drafts_at("old", "new-1", "new-2")
    for side in drafts.sides[1:]:
        side.name = "new:1"
    drafts.trial = TrialShare("new:1", 0.5)
    assert {home(drafts, SessionDrafting(0.1)) for _ in range(4)} == {"new-1", "new-2"}
    assert home(drafts, SessionDrafting(0.7)) == "old"
