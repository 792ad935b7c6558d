"""The draft on trial at an orchestrator: added with no sessions, renewed, watched, and withdrawn.

A trial has a lease at the orchestrator, and ends there with it if its command has died.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from slipstream.cli.swapping.answers import drafts_in, lacks_it, may_pass
from slipstream.cli.swapping.goal import SwapError
from slipstream.cli.swapping.operators import Operators, Processes, trial_terms
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError
from slipstream.v1 import operator_pb2

POLL_SECONDS = 0.5
_LEASE_SECONDS = 30.0
"""Time after which the orchestrator ends a trial whose command has died."""
_PATIENCE_SECONDS = 60.0
"""Time for which an orchestrator may be away, as when it is restarted."""
ABSENCE_SECONDS = 20.0
"""Time for which no process reaches the new draft before it counts as failing. A restarted
orchestrator needs a moment."""


class FailingError(SwapError):
    """The new draft fails."""


class NewDraft:
    """The new draft, by its address, in the eyes of the orchestrator's processes."""

    def __init__(
        self,
        operators: Operators,
        address: str,
        last_words: Callable[[], str | None],
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``last_words`` returns why its process has ended; None while it runs, or if it is none of
        ours. ``report`` is told how far the trial is."""
        self._operators, self.address = operators, address
        self._last_words, self.report = last_words, report
        self._served = time.monotonic()
        self._is_added = False
        """The orchestrator took it from us, or may have."""
        self._has_answered = False
        """The orchestrator has answered a call."""
        self.unreached: dict[str, str] = {}
        """Addresses of processes that a lasting change has not reached, and why."""

    def ask(self, call: Callable[[Operators], Processes]) -> Processes:
        """Return the answer of a call that may be repeated. An orchestrator that is restarted is
        waited for. PeerError."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                processes = call(self._operators)
            except PeerError as error:
                if not (may_pass(error) and self._has_answered) or time.monotonic() > deadline:
                    raise
                self.check_process()
                self.report("the orchestrator is away; waiting for it")
                time.sleep(POLL_SECONDS)
            else:
                self._has_answered = True
                return processes

    def add(self) -> Processes:
        """Add it with no sessions. PeerError if the orchestrator refuses it."""
        terms = trial_terms(0.0, _LEASE_SECONDS)
        self._is_added = True  # a call whose answer is lost may have been made
        try:
            return self.ask(lambda operators: operators.add(self.address, terms))
        except PeerError as error:
            self._is_added = may_pass(error)
            raise

    def renew(self, share: float) -> Processes:
        """Renew its trial's lease, with a share of the sessions. PeerError."""
        return self.ask(lambda operators: self._set(operators, trial_terms(share, _LEASE_SECONDS)))

    def end_trial(self) -> Processes:
        """End its trial, and let it stay. PeerError."""
        return self.ask(lambda operators: self._set(operators, None))

    def withdraw(self) -> None:
        """Remove it, unless it was not added by us. If the orchestrator is away, its trial ends
        with its lease. PeerError."""
        if self._is_added:
            self.note_unreached(self._operators.remove(self.address))

    @contextmanager
    def renewed(self, share: float) -> Iterator[None]:
        """Inside, the trial's lease is renewed beside what the caller does."""
        has_ended = threading.Event()

        def renew() -> None:
            while not has_ended.wait(_LEASE_SECONDS / 6):
                with suppress(PeerError):  # the next one may arrive
                    self._set(self._operators, trial_terms(share, _LEASE_SECONDS))

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_ended.set()
            thread.join()

    def found_in(self, processes: Processes) -> operator_pb2.Draft:
        """Return what the processes say of it."""
        return drafts_in(processes).get(self.address, operator_pb2.Draft())

    def begin_watch(self) -> None:
        """Count its absence from now on."""
        self._served = time.monotonic()

    def is_served(self, processes: Processes) -> bool:
        """Return whether a process reaches it. FailingError if its own process has ended, or if it
        was not reached for some time."""
        self.check_process()
        found, now = self.found_in(processes), time.monotonic()
        if found.state == operator_pb2.DRAFT_STATE_SERVING:
            self._served = now
            return True
        if now - self._served > ABSENCE_SECONDS:
            raise FailingError(f"the orchestrator has not reached it for {ABSENCE_SECONDS:g} s{because(found)}")
        return False

    def check_process(self) -> None:
        """Raise FailingError if its own process has ended."""
        if (words := self._last_words()) is not None:
            raise FailingError(words)

    def note_unreached(self, processes: Processes) -> None:
        """Note the processes that a lasting change has not reached."""
        self.unreached |= {each.address: each.error.message for each in processes if each.HasField("error")}

    def _set(self, operators: Operators, terms: operator_pb2.DraftTrial | None) -> Processes:
        """Set the terms of the trial, or without them end it; also in processes that were started
        since it began."""
        try:
            processes = operators.set_trial(self.address, terms)
        except PeerError as error:
            if error.reason != Reason.DRAFT_NOT_FOUND:
                raise
            return operators.add(self.address, terms)
        return operators.add(self.address, terms) if lacks_it(processes) else processes


def because(draft: operator_pb2.Draft) -> str:
    """Return why a draft is not reached, as the end of a sentence."""
    return f": {draft.trouble}" if draft.trouble else ""
