"""A trial's way through an orchestrator that is restarted, away, or refuses, and a draft that
fails."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from orchestrator.errors import DraftNotFoundError, DraftOnTrialError, NotReadyError
from slipstream.cli.swapping import new_draft, replacement
from slipstream.cli.swapping import trial as trials
from slipstream.cli.swapping.comparison import Verdict
from slipstream.cli.swapping.goal import Goal, SwapError
from slipstream.cli.swapping.new_draft import NewDraft
from slipstream.cli.swapping.operators import Processes
from slipstream.cli.swapping.replacement import Replacement
from slipstream.cli.swapping.trial import Trial
from slipstream.errors import Code, FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.rpc.status import PeerError, error_of, status_of
from slipstream.v1 import operator_pb2 as pb

OLD, NEW = "old:1", "new:1"
GOAL = Goal(share=0.25, turn_count=40, token_count=None, longest=60.0, start_seconds=60.0)


class Orchestrator:
    """One process, or two, whose drafts get turns whenever they are looked at."""

    def __init__(self, *, process_count: int = 1) -> None:
        self.processes: list[dict[str, pb.Draft]] = [{} for _ in range(process_count)]
        for drafts in self.processes:
            drafts[OLD] = pb.Draft(address=OLD, state=pb.DRAFT_STATE_SERVING, weights_fingerprint="w")
        self.ids = [f"p{number}" for number in range(process_count)]
        self.new = pb.Draft(address=NEW, state=pb.DRAFT_STATE_SERVING, weights_fingerprint="v", model="m")
        self.calls: list[tuple[str, float | None]] = []
        self.failing: Iterator[SlipstreamError | None] = itertools.repeat(None)
        """Errors of the next calls."""

    def restart(self, number: int) -> None:
        self.ids[number] += "'"
        self.processes[number] = {OLD: pb.Draft(address=OLD, state=pb.DRAFT_STATE_SERVING, weights_fingerprint="w")}

    def list(self) -> Processes:
        return self._answer("list", None)

    def add(self, address: str, trial: pb.DraftTrial | None) -> Processes:
        for drafts in self.processes:
            drafts.setdefault(address, pb.Draft()).MergeFrom(pb.Draft() if address in drafts else self.new)
            drafts[address].CopyFrom(self.new)
            if trial is not None:
                drafts[address].trial.CopyFrom(trial)
        return self._answer("add", None if trial is None else trial.share)

    def set_trial(self, address: str, trial: pb.DraftTrial | None) -> Processes:
        lacking = [address not in drafts for drafts in self.processes]
        for drafts in self.processes:
            if address in drafts:
                drafts[address].ClearField("trial")
                if trial is not None:
                    drafts[address].trial.CopyFrom(trial)
        answer = self._answer("set", None if trial is None else trial.share)
        error = DraftNotFoundError("new here")
        if lacking[0]:
            raise error_of(status_of(error))
        for each, lacks in zip(answer, lacking, strict=True):
            if lacks:
                each.ClearField("drafts")
                each.error.CopyFrom(status_of(error))
        return answer

    def remove(self, address: str) -> Processes:
        for drafts in self.processes:
            drafts.pop(address, None)
        return self._answer("remove", None)

    def _answer(self, call: str, share: float | None) -> Processes:
        self.calls.append((call, share))
        if (error := next(self.failing, None)) is not None:
            raise error_of(status_of(error))
        for drafts in self.processes:
            for draft in drafts.values():
                self._turn(draft, 20.0 if draft.address == NEW and draft.trial.share else 10.0)
        return [
            pb.ProcessDrafts(process_id=name, address=f"at-{name}", drafts=drafts.values())
            for name, drafts in zip(self.ids, self.processes, strict=True)
        ]

    def _turn(self, draft: pb.Draft, tokens: float) -> None:
        figures = draft.figures
        figures.turn_count += 1
        figures.token_count += int(tokens)
        for sums in (figures.speed, figures.step_length, figures.acceptance):
            sums.numerator += tokens
            sums.denominator += 10
            sums.numerator_squares += tokens * tokens
            sums.products += tokens * 10
            sums.denominator_squares += 100
            sums.count += 1


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (new_draft, replacement, trials):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.0)


def without_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (new_draft, replacement):
        monkeypatch.setattr(module, "ABSENCE_SECONDS", 0.0)


def trial_of(
    orchestrator: Orchestrator, words: list[str] | None = None, replaces: Sequence[str] = (), **goal: Any
) -> Trial:
    said = words if words is not None else []
    goals = GOAL.__class__(**{name: goal.get(name, getattr(GOAL, name)) for name in Goal.__slots__})
    return Trial(NewDraft(cast(Any, orchestrator), NEW, lambda: said[0] if said else None), goals, replaces)


def replaced(trial: Trial) -> Replacement:
    """Keep the new draft, and remove the old ones."""
    ended = kept(trial)
    ended.remove_old()
    return ended


def kept(trial: Trial) -> Replacement:
    ended = Replacement(trial.draft, trial.old_addresses)
    ended.keep(trial.goal.share)
    return ended


def with_another() -> Orchestrator:
    """Two processes with two old drafts."""
    orchestrator = Orchestrator(process_count=2)
    for drafts in orchestrator.processes:
        drafts["old:2"] = pb.Draft(address="old:2", state=pb.DRAFT_STATE_SERVING, weights_fingerprint="x")
    return orchestrator


def drafts_of(orchestrator: Orchestrator) -> list[list[str]]:
    return [[*drafts] for drafts in orchestrator.processes]


def test_a_trial_begins_without_sessions_and_ends_with_one_draft() -> None:
    orchestrator = Orchestrator(process_count=2)
    trial = trial_of(orchestrator)
    finding = trial.find()
    assert finding.verdict is Verdict.BETTER and finding.new.turn_count >= 40
    assert orchestrator.calls[:2] == [("list", None), ("add", 0.0)]
    assert {share for call, share in orchestrator.calls if call == "set"} == {0.25}
    replaced(trial)
    assert drafts_of(orchestrator) == [[NEW], [NEW]]
    assert orchestrator.calls[-4:] == [("set", None), ("set", None), ("remove", None), ("set", None)]


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_is_restarted_gets_the_trial_again(number: int) -> None:
    orchestrator = Orchestrator(process_count=2)
    trial = trial_of(orchestrator)
    looks = itertools.count()
    trial.draft.report = lambda text: orchestrator.restart(number) if next(looks) == 5 else None
    finding = trial.find()
    assert finding.verdict is Verdict.BETTER and finding.new.turn_count >= 40
    assert [*orchestrator.calls].count(("add", 0.25)) == 1 and not trial.draft.unreached
    assert drafts_of(orchestrator) == [[OLD, NEW], [OLD, NEW]]
    orchestrator.restart(number)
    replaced(trial)
    assert drafts_of(orchestrator) == [[NEW], [NEW]]


def test_an_orchestrator_that_is_away_for_a_moment_is_waited_for() -> None:
    orchestrator = Orchestrator()
    away = NotReadyError("away")
    orchestrator.failing = iter([None, None, None, None, away, away])
    assert trial_of(orchestrator).find().verdict is Verdict.BETTER
    orchestrator = Orchestrator()
    orchestrator.failing = iter([away])
    with pytest.raises(PeerError, match="away"):  # one that was never there is not
        trial_of(orchestrator).find()


def test_one_that_stays_away_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_draft, "_PATIENCE_SECONDS", 0.0)
    orchestrator = Orchestrator()
    orchestrator.failing = iter([None, None, None, None, NotReadyError("away"), NotReadyError("away")])
    with pytest.raises(PeerError) as error:
        trial_of(orchestrator).find()
    assert error.value.code is Code.UNAVAILABLE


def test_a_trial_that_another_process_refuses_does_not_begin() -> None:
    orchestrator = Orchestrator(process_count=2)
    add = orchestrator.add

    def refusing(address: str, trial: pb.DraftTrial | None) -> Processes:
        answer = add(address, trial)
        answer[1].error.CopyFrom(status_of(DraftOnTrialError("one at a time", address="x:1")))
        return answer

    orchestrator.add = refusing  # type: ignore[method-assign]
    with pytest.raises(PeerError, match="one at a time"):
        trial_of(orchestrator).find()


def test_a_trial_that_another_process_cannot_take_names_it() -> None:
    orchestrator = Orchestrator(process_count=2)
    add = orchestrator.add

    def refusing(address: str, trial: pb.DraftTrial | None) -> Processes:
        answer = add(address, trial)
        answer[1].error.CopyFrom(status_of(InvalidFieldsError([FieldViolation("address", "is refused")])))
        return answer

    orchestrator.add = refusing  # type: ignore[method-assign]
    with pytest.raises(PeerError, match="the process at at-p1: address is refused"):
        trial_of(orchestrator).find()


@pytest.mark.parametrize("is_there", [True, False])
def test_old_drafts_stay_until_every_process_reaches_the_new_one(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_absence(monkeypatch)
    orchestrator = Orchestrator(process_count=2)
    trial = trial_of(orchestrator)
    trial.find()
    ended = kept(trial)
    if is_there:
        orchestrator.processes[1][NEW].state = pb.DRAFT_STATE_CONNECTING
        orchestrator.processes[1][NEW].trouble = "connection refused"
    else:
        del orchestrator.processes[1][NEW]
        orchestrator.new.state = pb.DRAFT_STATE_CONNECTING  # where it is added again
    ended.remove_old()
    why = "at-p1: connection refused" if is_there else "at-p0: it does not reach the draft"
    assert [*ended.remaining] == [OLD] and f"the process at {why}" in ended.remaining[OLD]
    assert drafts_of(orchestrator) == [[OLD, NEW], [OLD, NEW]]


def test_a_process_that_missed_the_end_of_the_trial_is_told_again() -> None:
    orchestrator = Orchestrator(process_count=2)
    trial = trial_of(orchestrator)
    trial.find()
    ended = kept(trial)
    orchestrator.processes[1][NEW].trial.share = 0.25  # its lease would end
    ended.remove_old()
    assert not orchestrator.processes[1][NEW].HasField("trial") and not ended.remaining


def test_a_process_that_misses_one_change_of_several_is_named() -> None:
    orchestrator = with_another()
    remove = orchestrator.remove

    def missing_the_first(address: str) -> Processes:
        answer = remove(address)
        if address == OLD:
            answer[1].error.CopyFrom(status_of(NotReadyError("away")))
        return answer

    orchestrator.remove = missing_the_first  # type: ignore[method-assign]
    trial = trial_of(orchestrator)
    trial.find()
    ended = replaced(trial)
    assert trial.draft.unreached == {"at-p1": "away"} and not ended.remaining


def test_of_several_drafts_those_that_are_named_are_compared_and_replaced() -> None:
    orchestrator = with_another()
    trial = trial_of(orchestrator, replaces=["old:2", "old:2"])
    finding = trial.find()
    assert finding.old.turn_count < 2 * finding.new.turn_count  # two processes, and one draft in each
    replaced(trial)
    assert drafts_of(orchestrator) == [[OLD, NEW], [OLD, NEW]] and trial.staying == [OLD]
    with pytest.raises(SwapError, match=f"old:3 is no draft of this orchestrator; its drafts: {OLD}, {NEW}"):
        Trial(NewDraft(cast(Any, orchestrator), "new:2", lambda: None), GOAL, ["old:3"]).find()


def test_a_draft_that_died_since_it_was_measured_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    orchestrator = Orchestrator()
    trial = trial_of(orchestrator)
    assert trial.find().verdict is Verdict.BETTER
    without_absence(monkeypatch)
    orchestrator.processes[0][NEW].state = pb.DRAFT_STATE_AWAY
    with pytest.raises(SwapError, match="not reached it"):
        kept(trial)
    assert orchestrator.processes[0][NEW].HasField("trial")


def test_a_trial_is_renewed_while_the_user_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_draft, "_LEASE_SECONDS", 0.06)
    orchestrator = Orchestrator()
    trial = trial_of(orchestrator)
    trial.find()
    orchestrator.failing = itertools.chain([NotReadyError("away")], itertools.repeat(None))
    orchestrator.calls.clear()
    enough = threading.Event()
    answer = orchestrator._answer

    def counted(call: str, share: float | None) -> Processes:
        if len(orchestrator.calls) > 2:
            enough.set()
        return answer(call, share)

    orchestrator._answer = counted  # type: ignore[method-assign]
    with trial.draft.renewed(0.25):
        assert enough.wait(60)
    assert set(orchestrator.calls) == {("set", 0.25)}


def test_a_draft_that_was_there_already_is_not_withdrawn() -> None:
    orchestrator = Orchestrator()
    orchestrator.processes[0][NEW] = orchestrator.new
    trial = trial_of(orchestrator)
    with pytest.raises(SwapError, match="already"):
        trial.find()
    trial.draft.withdraw()
    assert drafts_of(orchestrator) == [[OLD, NEW]] and orchestrator.calls == [("list", None)]


@pytest.mark.parametrize(
    ("error", "is_removed"), [(DraftOnTrialError("one at a time", address=NEW), False), (NotReadyError("away"), True)]
)
def test_only_a_draft_that_may_have_been_added_is_withdrawn(
    error: SlipstreamError, is_removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_draft, "_PATIENCE_SECONDS", 0.0)
    orchestrator = Orchestrator()
    trial = trial_of(orchestrator)
    orchestrator.failing = itertools.chain([None], itertools.repeat(error))
    with pytest.raises(PeerError):
        trial.find()
    orchestrator.failing = itertools.repeat(None)
    trial.draft.withdraw()
    assert (("remove", None) in orchestrator.calls) == is_removed


def test_a_draft_that_is_not_reached_is_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    without_absence(monkeypatch)
    orchestrator = Orchestrator()
    trial = trial_of(orchestrator)

    def go_away(text: str) -> None:
        orchestrator.new.state = orchestrator.processes[0][NEW].state = pb.DRAFT_STATE_AWAY

    trial.draft.report = go_away
    finding = trial.find()
    assert finding.verdict is Verdict.FAILING and "not reached it" in finding.why


def test_a_draft_with_another_tokenizer_is_told_the_flag_that_translates() -> None:
    orchestrator = Orchestrator()
    orchestrator.new.state = pb.DRAFT_STATE_MISMATCHED
    with pytest.raises(SwapError, match=r"another tokenizer than the target.*-- --target-tokenizer TARGET"):
        trial_of(orchestrator).find()


def test_a_draft_that_never_serves_is_failing() -> None:
    orchestrator = Orchestrator()
    orchestrator.new.state, orchestrator.new.trouble = pb.DRAFT_STATE_CONNECTING, "connection refused"
    said: list[str] = []
    trial = trial_of(orchestrator, start_seconds=0.05)
    trial.draft.report = said.append
    finding = trial.find()
    assert finding.verdict is Verdict.FAILING and "in 0.05 s: connection refused" in finding.why
    assert not said or set(said) == {"waiting until the new draft serves: connection refused"}


def test_a_draft_whose_process_ends_is_failing_and_is_not_kept() -> None:
    orchestrator, words = Orchestrator(), list[str]()
    trial = trial_of(orchestrator, words)
    trial.draft.report = lambda text: words.append("out of memory")
    finding = trial.find()
    assert (finding.verdict, finding.why) == (Verdict.FAILING, "out of memory")
    with pytest.raises(SwapError, match="out of memory"):
        kept(trial)


def test_an_old_draft_that_cannot_be_removed_is_told() -> None:
    orchestrator = Orchestrator()
    trial = trial_of(orchestrator)
    trial.find()
    orchestrator.failing = iter([None, None, None, DraftOnTrialError("on trial", address=OLD)])
    ended = replaced(trial)
    assert ended.remaining == {OLD: "on trial"}


def test_without_traffic_nothing_is_decided() -> None:
    orchestrator = Orchestrator()
    finding = trial_of(orchestrator, longest=0.0).find()
    assert finding.verdict is Verdict.UNDECIDED and "least" in finding.why


def test_tokens_may_end_a_trial_too() -> None:
    orchestrator = Orchestrator()
    finding = trial_of(orchestrator, turn_count=10**9, token_count=200).find()
    assert 200 <= finding.new.token_count < 300
