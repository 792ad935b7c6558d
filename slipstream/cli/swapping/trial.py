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
from functools import partial

from slipstream.cli.local import TOKENIZER_FLAG
from slipstream.cli.swapping.answers import drafts_in, lacking_at, lacks_it, may_pass, refusal_of
from slipstream.cli.swapping.comparison import Figures, Tally, Verdict, judge
from slipstream.cli.swapping.goal import Finding, Goal, SwapError
from slipstream.cli.swapping.operators import Operators, Processes, trial_terms
from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError
from slipstream.v1 import operator_pb2

POLL_SECONDS = 0.5
_LEASE_SECONDS = 30.0
"""Time after which the orchestrator ends a trial whose command has died."""
_PATIENCE_SECONDS = 60.0
"""Time for which an orchestrator may be away, as when it is restarted."""
_ABSENCE_SECONDS = 20.0
"""Time for which no process reaches the new draft before it counts as failing. A restarted
orchestrator needs a moment."""


class _FailingError(SwapError):
    """The new draft fails."""


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
        drafts = drafts_in(self._ask(self._operators.list))
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
        self._note(self._ask(lambda: self._set(None)))

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
            self._ask(lambda: self._set(None))  # in a process, too, that was away before and lost its old drafts
        except SlipstreamError as error:
            self.remaining |= dict.fromkeys(self.remaining, str(error))

    def withdraw(self) -> None:
        """Remove the new draft, unless it was not added by this trial. If the orchestrator is away,
        the trial ends with its lease."""
        if self._is_added:
            self._note(self._operators.remove(self.address))

    def _wait_until_served_everywhere(self) -> None:
        """Wait until the new draft serves, on trial no more, in every process that answers.
        SwapError if it does not."""
        deadline = time.monotonic() + _ABSENCE_SECONDS
        while lacking := lacking_at(self._ask(lambda: self._set(None)), self.address):
            if time.monotonic() > deadline:
                raise SwapError(f"the new draft does not serve everywhere: {lacking}")
            self.report("waiting until the new draft serves everywhere")
            time.sleep(POLL_SECONDS)

    def _introduce(self) -> operator_pb2.Draft:
        """Add the draft with no sessions, and return it once it serves."""
        processes = self._add()
        if fault := refusal_of(processes):
            raise fault
        deadline = time.monotonic() + self._goal.start_seconds
        while True:
            self._check_process()
            new = drafts_in(processes).get(self.address, operator_pb2.Draft())
            if new.state == operator_pb2.DRAFT_STATE_SERVING:
                return new
            if new.state == operator_pb2.DRAFT_STATE_MISMATCHED:
                raise SwapError(
                    f"the draft at {self.address}, {new.model}, has another tokenizer than the target. A draft service with "
                    f"{TOKENIZER_FLAG} TARGET translates its hints: slipstream swap --model MODEL -- {TOKENIZER_FLAG} TARGET"
                )
            if time.monotonic() > deadline:
                raise _FailingError(
                    f"the orchestrator has not reached it in {self._goal.start_seconds:g} s{_because(new)}"
                )
            self.report(f"waiting until the new draft serves{_because(new)}")
            time.sleep(POLL_SECONDS)
            processes = self._ask(lambda: self._renew(0.0))

    def _add(self) -> Processes:
        """Add the draft with no sessions. PeerError if the orchestrator refuses it."""
        terms = trial_terms(0.0, _LEASE_SECONDS)
        self._is_added = True  # a call whose answer is lost may have been made
        try:
            return self._ask(lambda: self._operators.add(self.address, terms))
        except PeerError as error:
            self._is_added = may_pass(error)
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
        return self._set(trial_terms(share, _LEASE_SECONDS))

    def _set(self, terms: operator_pb2.DraftTrial | None) -> Processes:
        """Set the terms of the trial, or without them end it; also in processes that were started
        since it began."""
        try:
            processes = self._operators.set_trial(self.address, terms)
        except PeerError as error:
            if error.reason != Reason.DRAFT_NOT_FOUND:
                raise
            return self._operators.add(self.address, terms)
        return self._operators.add(self.address, terms) if lacks_it(processes) else processes

    def _check_process(self) -> None:
        if (words := self._last_words()) is not None:
            raise _FailingError(words)

    def _is_served(self, processes: Processes) -> bool:
        """Return whether a process reaches the new draft. SwapError if its own process has ended,
        or if it was not reached for some time."""
        self._check_process()
        new, now = drafts_in(processes).get(self.address, operator_pb2.Draft()), time.monotonic()
        if new.state == operator_pb2.DRAFT_STATE_SERVING:
            self._served = now
            return True
        if now - self._served > _ABSENCE_SECONDS:
            raise _FailingError(f"the orchestrator has not reached it for {_ABSENCE_SECONDS:g} s{_because(new)}")
        return False

    def _twin_of(self, new: operator_pb2.Draft) -> str:
        drafts = drafts_in(self._ask(self._operators.list))
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
                if not may_pass(error) or not self.old_addresses or time.monotonic() > deadline:
                    raise
                self._check_process()
                self.report("the orchestrator is away; waiting for it")
                time.sleep(POLL_SECONDS)
            else:
                return processes

    def _note(self, processes: Processes) -> None:
        self.unreached |= {each.address: each.error.message for each in processes if each.HasField("error")}


def _because(draft: operator_pb2.Draft) -> str:
    return f": {draft.trouble}" if draft.trouble else ""
