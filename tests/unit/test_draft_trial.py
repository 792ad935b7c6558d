"""A draft on trial gets its share of the sessions, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.peers.run_parts import Step
from orchestrator.processes.draft_metrics import draft_readings
from orchestrator.rounds.draft_figures import TurnFigures
from orchestrator.rounds.draft_request import SessionDrafting, draftings_of
from orchestrator.rounds.drafts import Drafts, TrialShare, place_of
from orchestrator.speculation.proposal import Source
from tests.scripted_peers import MODEL, TIMING, Draft, side_of


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


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("begins_turn", [False, True])
def test_a_removed_draft_gets_no_sessions_even_if_it_was_the_last_one(stays: bool, begins_turn: bool) -> None:
    drafts, _ = drafts_at("old")
    session = SessionDrafting()
    assert home(drafts, session) == "old"
    drafts.retire("old")
    for each in (SessionDrafting(), session, session):
        assert drafts.home(each, begins_turn=begins_turn, stays=stays) is None
    assert drafts.of(session) is None and drafts.sides[0].session_count == 0
    assert drafts.remove_retired() == ["old"]


def test_a_session_of_a_removed_draft_waits_for_one_that_is_away() -> None:
    drafts, _ = drafts_at("old", "away")
    drafts.sides[1]._breaker.record_failure()
    session = SessionDrafting()
    assert home(drafts, session) == "old"
    drafts.retire("old")
    assert home(drafts, session, begins_turn=False) == "away"


def test_a_name_of_several_services_is_one_draft() -> None:
    drafts, _ = drafts_at("old", "new-1", "new-2")
    for side in drafts.sides[1:]:
        side.name = "new:1"
    drafts.trial = TrialShare("new:1", 0.5)
    assert {home(drafts, SessionDrafting(0.1)) for _ in range(4)} == {"new-1", "new-2"}
    assert home(drafts, SessionDrafting(0.7)) == "old"


def weighted(**weights: str) -> tuple[Drafts, dict[str, Draft]]:
    """Drafts at these addresses with these weights."""
    drafts, scripted = drafts_at(*weights)
    for name, draft in scripted.items():
        draft.info = replace(MODEL, weights_fingerprint=weights[name])
    return drafts, scripted


def homes(drafts: Drafts, draftings: tuple[SessionDrafting, ...]) -> list[str]:
    sides = [drafts.home(each, begins_turn=True, stays=False) for each in draftings]
    return ["" if side is None else side.address for side in sides]


def test_a_sessions_drafts_have_different_weights() -> None:
    drafts, _ = weighted(a="1", b="1", c="2")
    for _ in range(3):
        one, two, three = homes(drafts, draftings_of(0.5, 3))
        assert {one[0], two[0]} in ({"a", "c"}, {"b", "c"}) and three == ""
    assert [side.session_count for side in drafts.sides][2] == 3


def test_of_a_sessions_two_drafts_one_that_dies_is_left_alone() -> None:
    drafts, _ = weighted(a="1", b="2")
    draftings = draftings_of(0.5, 2)
    assert homes(drafts, draftings) == ["a", "b"]
    drafts.sides[0]._breaker.record_failure()
    assert homes(drafts, draftings) == ["a", "b"], "there is no third one to move to"
    assert not drafts.sides[0].may_start() and drafts.sides[1].may_start()


def test_a_trial_takes_the_place_of_one_of_several_drafts() -> None:
    drafts, _ = weighted(a="1", b="2", new="3")
    drafts.trial = TrialShare("new", 0.5)
    assert homes(drafts, draftings_of(0.1, 2)) == ["new", "a"]
    assert homes(drafts, draftings_of(0.9, 2)) == ["b", "a"]


def test_the_id_in_its_hints_says_which_draft_made_one() -> None:
    drafts, _ = weighted(a="1", b="2")
    first, second = draftings_of(0.5, 2)
    homes(drafts, (first, second))
    drafts.sides[0].record_hints(7)
    drafts.sides[1].record_hints(8)
    assert (drafts.maker_of(first, 7), drafts.maker_of(first, 8), drafts.maker_of(first, 9)) == ("1", "2", "")


def test_metrics_tell_drafts_apart_by_their_fingerprints_and_add_up_equal_ones() -> None:
    drafts, _ = weighted(a="1234567890", b="1234567890", c="other")
    for side, length in zip(drafts.sides, (2, 3, 1), strict=True):
        turn = TurnFigures(10, 5, later_count=8, seconds=0.5)
        turn.record_step(Step(2, length, 1, Source.DRAFT, 0.0, TIMING))
        side.figures.record_turn(turn)
    drafts.trial = TrialShare("c", 0.25)
    told = {each.instrument.name: each.values for each in draft_readings(drafts)}
    assert told["draft_hint_tokens_per_pos"] == {
        ("12345678", "0"): 2, ("12345678", "1"): 2, ("12345678", "2"): 1, ("other", "0"): 1
    }  # fmt: skip
    assert told["draft_hint_accepted_tokens_per_pos"] == {
        ("12345678", "0"): 2, ("12345678", "1"): 0, ("12345678", "2"): 0, ("other", "0"): 1
    }  # fmt: skip
    assert told["draft_turn_tokens"] == {("12345678",): 16, ("other",): 8}
    assert told["draft_turn_seconds"] == {("12345678",): 1.0, ("other",): 0.5}
    assert told["draft_trial_share"] == {("other",): 0.25}


@pytest.mark.parametrize("trial", [None, TrialShare("new", 0.0)])
def test_an_added_draft_that_does_not_fit_refuses_no_request(trial: TrialShare | None) -> None:
    drafts, scripted = drafts_at("new")
    scripted["new"].info = replace(MODEL, tokenizer_fingerprint="other", max_draft_length=1)
    drafts.trial = trial
    assert drafts.mismatched is scripted["new"].info, "the settings name it"
    drafts.sides[0].is_added = True
    assert drafts.mismatched is None and drafts.max_draft_length is None


def test_an_added_draft_that_does_not_fit_hides_no_mismatch_of_the_settings() -> None:
    drafts, scripted = drafts_at("added", "old")
    scripted["old"].info = scripted["added"].info = replace(MODEL, tokenizer_fingerprint="other")
    drafts.sides[0].is_added = True
    assert drafts.mismatched is scripted["old"].info
    scripted["added"].info = MODEL
    assert drafts.mismatched is None, "that one drafts"
