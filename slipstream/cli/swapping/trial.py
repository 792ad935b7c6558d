"""A trial of a new draft beside the old ones, from its start to its end.

::

    introduce --> measure --> verdict --> keep --> remove_old
        |            |           '------> withdraw: the new one is removed
        '------------'-- it fails, Ctrl-C --^
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from slipstream.cli.swapping.comparison import Figures, Tally, Verdict, judge
from slipstream.cli.swapping.operators import Operators, Processes, trial_terms
from slipstream.errors import Code, SlipstreamError
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError, error_of
from slipstream.v1 import operator_pb2

POLL_SECONDS = 0.5
_LEASE_SECONDS = 30.0
"""Time after which the orchestrator ends a trial whose command has died."""
_PATIENCE_SECONDS = 60.0
"""Time for which an orchestrator may be away, as when it is restarted."""
_ABSENCE_SECONDS = 20.0
"""Time for which no process reaches the new draft before it counts as failing. A restarted
orchestrator needs a moment."""

_REFUSALS = (Reason.DRAFT_ON_TRIAL, Reason.DRAFT_LIMIT, Reason.INVALID_FIELDS)


class SwapError(SlipstreamError):
    """A swap cannot be done as it was asked."""

    reason = Reason.SERVICE_FAILED


class _FailingError(SwapError):
    """The new draft fails."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Size and limits of a trial."""

    share: float
    turn_count: int
    """Turns of the new draft after which it is judged."""
    token_count: int | None
    """Tokens of the new draft after which it is judged, if that comes first."""
    longest: float
    """Seconds after which it is judged by what there is."""
    start_seconds: float
    """Seconds that the new draft has to serve."""


class Finding(NamedTuple):
    """The result of a trial."""

    verdict: Verdict
    why: str
    new: Figures
    old: Figures


class Trial:
    """The trial of one draft."""

    def __init__(
        self,
        operators: Operators,
        address: str,
        goal: Goal,
        last_words: Callable[[], str | None],
        report: Callable[[str], None],
        replaces: Iterable[str] = (),
    ) -> None:
        """``last_words`` returns why the new draft's process has ended; None while it runs, or if
        it is none of ours. ``report`` is told how far the trial is. ``replaces``: addresses of the
        old drafts that it would replace; none means all."""
        self._operators, self.address, self._goal = operators, address, goal
        self._last_words, self.report = last_words, report
        self._replaces = list(dict.fromkeys(replaces))
        self._tally = Tally()
        self._served = time.monotonic()
        self._is_added = False
        """The orchestrator took the new draft from us, or may have."""
        self.old_addresses: list[str] = []
        """The drafts that the new one would replace."""
        self.staying: list[str] = []
        """The other drafts."""
        self.remaining: dict[str, str] = {}
        """Old drafts that were not removed, and why."""
        self.unreached: dict[str, str] = {}
        """Addresses of processes that a lasting change has not reached, and why."""

    def find(self) -> Finding:
        """Run the trial. SwapError or PeerError if there can be none. The new draft is on trial
        afterwards."""
        drafts = _drafts_in(self._ask(self._operators.list))
        if self.address in drafts:
            raise SwapError(f"{self.address} is a draft of this orchestrator already: there is nothing to replace")
        if unknown := [address for address in self._replaces if address not in drafts]:
            raise SwapError(f"{unknown[0]} is no draft of this orchestrator; its drafts: {', '.join(drafts)}")
        self.old_addresses = self._replaces or [*drafts]
        self.staying = [address for address in drafts if address not in self.old_addresses]
        try:
            new = self._introduce()
            if twin := self._twin_of(new):
                why = f"it has the weights of the draft at {twin}, so neither guesses better"
                return Finding(Verdict.UNDECIDED, why, Figures(), Figures())
            return self._finding(*self._measure())
        except _FailingError as error:
            return self._finding(Verdict.FAILING, str(error))

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Inside, the trial's lease is renewed beside what the caller does."""
        has_ended = threading.Event()

        def renew() -> None:
            while not has_ended.wait(_LEASE_SECONDS / 6):
                with suppress(PeerError):  # the next one may arrive
                    self._renew(self._goal.share)

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_ended.set()
            thread.join()

    def keep(self) -> None:
        """End the trial with the new draft beside the old ones. PeerError or SwapError if it cannot
        be kept, as when it has died since it was measured."""
        self._served = time.monotonic()
        while not self._is_served(self._ask(lambda: self._renew(self._goal.share))):
            time.sleep(POLL_SECONDS)
        self._note(self._ask(self._end_trial))

    def remove_old(self) -> None:
        """Remove the old drafts after `keep`, if the new one serves in every process that answers.
        One that is not removed stays beside the new one."""
        self.remaining = dict.fromkeys(self.old_addresses, "interrupted before it was removed")
        try:
            for address in self.old_addresses:
                self._wait_until_served_everywhere()
                self.remaining[address] = "interrupted while it was removed"
                self._note(self._ask(partial(self._operators.remove, address)))
                del self.remaining[address]
            self._ask(self._end_trial)  # in a process, too, that was away before and lost its old drafts
        except SlipstreamError as error:
            self.remaining |= dict.fromkeys(self.remaining, str(error))

    def withdraw(self) -> None:
        """Remove the new draft, unless it was not added by this trial. If the orchestrator is away,
        the trial ends with its lease."""
        if self._is_added:
            self._note(self._operators.remove(self.address))

    def _end_trial(self) -> Processes:
        try:
            processes = self._operators.set_trial(self.address, None)
        except PeerError as error:
            if error.reason != Reason.DRAFT_NOT_FOUND:
                raise
            processes = self._operators.add(self.address, None)
        if _lacks_it(processes):  # a process was started again
            processes = self._operators.add(self.address, None)
        return processes

    def _wait_until_served_everywhere(self) -> None:
        """Wait until the new draft serves, on trial no more, in every process that answers.
        SwapError if it does not."""
        deadline = time.monotonic() + _ABSENCE_SECONDS
        while lacking := _lacking(self._ask(self._end_trial), self.address):
            if time.monotonic() > deadline:
                raise SwapError(f"the new draft does not serve everywhere: {lacking}")
            self.report("waiting until the new draft serves everywhere")
            time.sleep(POLL_SECONDS)

    def _introduce(self) -> operator_pb2.Draft:
        """Add the draft with no sessions, and return it once it serves."""
        processes = self._add()
        if fault := _refusal(processes):
            raise fault
        deadline = time.monotonic() + self._goal.start_seconds
        while True:
            self._check_process()
            new = _drafts_in(processes).get(self.address, operator_pb2.Draft())
            if new.state == operator_pb2.DRAFT_STATE_SERVING:
                return new
            if new.state == operator_pb2.DRAFT_STATE_MISMATCHED:
                raise SwapError(
                    f"the draft at {self.address}, {new.model}, has another tokenizer than the target: it cannot be used here"
                )
            if time.monotonic() > deadline:
                raise _FailingError(f"the orchestrator has not reached it in {self._goal.start_seconds:g} s")
            self.report("waiting until the new draft serves")
            time.sleep(POLL_SECONDS)
            processes = self._ask(lambda: self._renew(0.0))

    def _add(self) -> Processes:
        """Add the draft with no sessions. PeerError if the orchestrator refuses it."""
        terms = trial_terms(0.0, _LEASE_SECONDS)
        self._is_added = True  # a call whose answer is lost may have been made
        try:
            return self._ask(lambda: self._operators.add(self.address, terms))
        except PeerError as error:
            self._is_added = _may_pass(error)
            raise

    def _measure(self) -> tuple[Verdict, str]:
        """Give the draft its share until there is enough to judge it."""
        deadline = time.monotonic() + self._goal.longest
        self._served = time.monotonic()
        while True:
            processes = self._ask(lambda: self._renew(self._goal.share))
            self._tally.take(processes)
            self._is_served(processes)
            new, old = self._figures()
            if self._is_enough(new) or time.monotonic() > deadline:
                return judge(new, old)
            self.report(
                f"{new.turn_count} of {self._goal.turn_count} turns with the new draft, {old.turn_count} with the old"
            )
            time.sleep(POLL_SECONDS)

    def _is_enough(self, new: Figures) -> bool:
        most = self._goal.token_count
        return new.turn_count >= self._goal.turn_count or (most is not None and new.token_count >= most)

    def _renew(self, share: float) -> Processes:
        """Renew the trial, and begin it again in processes that were started since."""
        terms = trial_terms(share, _LEASE_SECONDS)
        try:
            processes = self._operators.set_trial(self.address, terms)
        except PeerError as error:
            if error.reason != Reason.DRAFT_NOT_FOUND:
                raise
            return self._operators.add(self.address, terms)
        return self._operators.add(self.address, terms) if _lacks_it(processes) else processes

    def _check_process(self) -> None:
        if (words := self._last_words()) is not None:
            raise _FailingError(words)

    def _is_served(self, processes: Processes) -> bool:
        """Return whether a process reaches the new draft. SwapError if its own process has ended,
        or if it was not reached for some time."""
        self._check_process()
        new, now = _drafts_in(processes).get(self.address), time.monotonic()
        if new is not None and new.state == operator_pb2.DRAFT_STATE_SERVING:
            self._served = now
            return True
        if now - self._served > _ABSENCE_SECONDS:
            raise _FailingError(f"the orchestrator has not reached it for {_ABSENCE_SECONDS:g} s")
        return False

    def _twin_of(self, new: operator_pb2.Draft) -> str:
        drafts = _drafts_in(self._ask(self._operators.list))
        same = [address for address in self.old_addresses if address in drafts]
        return next((a for a in same if drafts[a].weights_fingerprint == new.weights_fingerprint), "")

    def _figures(self) -> tuple[Figures, Figures]:
        return self._tally.of([self.address]), self._tally.of(self.old_addresses)

    def _finding(self, verdict: Verdict, why: str) -> Finding:
        return Finding(verdict, why, *self._figures())

    def _ask(self, call: Callable[[], Processes]) -> Processes:
        """Return the answer of a call that may be repeated. An orchestrator that is restarted is
        waited for. PeerError."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                processes = call()
            except PeerError as error:
                if not _may_pass(error) or not self.old_addresses or time.monotonic() > deadline:
                    raise
                self._check_process()
                self.report("the orchestrator is away; waiting for it")
                time.sleep(POLL_SECONDS)
            else:
                return processes

    def _note(self, processes: Processes) -> None:
        self.unreached |= {each.address: each.error.message for each in processes if each.HasField("error")}


def _may_pass(error: PeerError) -> bool:
    """Return whether the orchestrator is away or slow, rather than refuses."""
    return error.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


def _drafts_in(processes: Processes) -> dict[str, operator_pb2.Draft]:
    """Return the drafts by their addresses. One that serves in any process counts as serving."""
    found: dict[str, operator_pb2.Draft] = {}
    for process in processes:
        for draft in process.drafts:
            known = found.get(draft.address)
            if known is None or draft.state == operator_pb2.DRAFT_STATE_SERVING:
                found[draft.address] = draft
    return found


def _lacking(processes: Processes, address: str) -> str:
    """Return where the draft at an address does not serve; empty if it serves in every process that
    answers."""
    for process in processes:
        refusal = error_of(process.error) if process.HasField("error") else None
        if refusal is not None and _may_pass(refusal):
            continue
        drafts = [draft for draft in process.drafts if draft.address == address]
        if not any(draft.state == operator_pb2.DRAFT_STATE_SERVING for draft in drafts):
            return f"the process at {process.address}: {refusal or 'it does not reach the draft'}"
    return ""


def _lacks_it(processes: Processes) -> bool:
    """Return whether a process does not know the draft on trial."""
    return any(_reason_of(process) == Reason.DRAFT_NOT_FOUND for process in processes)


def _refusal(processes: Processes) -> PeerError | None:
    """Return why a process refuses the trial; None if none does. One that is away refuses
    nothing."""
    for process in processes:
        if process.HasField("error") and _reason_of(process) in _REFUSALS:
            error = error_of(process.error)
            return PeerError(error.code, error.reason, f"the process at {process.address}: {error}", error.metadata)
    return None


def _reason_of(process: operator_pb2.ProcessDrafts) -> str:
    return error_of(process.error).reason if process.HasField("error") else ""
