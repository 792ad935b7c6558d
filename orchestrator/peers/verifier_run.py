"""One run of a verifier, as the orchestrator sees it: a receiver of its parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from orchestrator.peers.checking.faults import PeerFaultError
from orchestrator.peers.checking.results import RunCheck
from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.run_parts import Part, merged, part_of
from slipstream.rpc.status import PeerError, StreamLostError
from slipstream.wire.v1 import hint_pb2, verifier_pb2


class Limits(NamedTuple):
    """Bounds of a run."""

    until_length: int
    """The sequence's length at which it ends."""
    lead: int
    """Tokens that it may be ahead of what was taken."""


class Hinting(NamedTuple):
    """The use of hints in a run."""

    takes_ngrams: bool = False
    """True if the verifier makes hints itself from the sequence's own tokens."""
    fixed_count: int = 0
    """Hint tokens to verify in each step; 0: as many as pay."""
    longest_hold: float | None = None
    """Longest time for which a step waits for a hint, in seconds; None: no step waits."""
    takes_heads: bool = False
    """True if the verifier makes hints with heads of its target, if there are any."""


class RunSide(Protocol):
    """The verifier as one of its runs sees it."""

    def tell(self, item: verifier_pb2.RunItem) -> None:
        """Send an item that has no result."""

    def withdraw(self, run: VerifierRun) -> None:
        """Stop waiting for a run's results."""

    def deliver(self, arrived: asyncio.Event) -> None:
        """Set an event once the turns that it wakes do not take too much of the event loop."""

    def owe(self, token_count: int) -> None:
        """Count tokens that the verifier owes."""

    def settle(self, token_count: int) -> None:
        """Count them no more."""

    def record_verification(self) -> None:
        """Record that the verifier makes progress."""

    def record_steps(self, timing: PeerTiming) -> None:
        """Record what the steps of a part took."""

    def note_fault(self, fault: PeerFaultError) -> None:
        """Count an answer that no verifier can give."""


class VerifierRun:
    """A run from its start on. The verifier owes tokens while its grant is not used up."""

    def __init__(
        self, side: RunSide, item: verifier_pb2.RunItem, check: RunCheck, limits: Limits, on_open: Callable[[], None]
    ) -> None:
        """``item`` starts the run; the caller sends it. ``on_open`` is called with the first part:
        the handle is open."""
        self.item = item
        self.length = check.length
        """The sequence's length up to the last part that was taken."""
        self.has_ended = False
        """True if no more parts come."""
        self._side, self._check, self._limits, self._on_open = side, check, limits, on_open
        self._granted = item.start.granted_length
        self._parts: list[Part] = []
        self._is_begun = False
        self._arrived = asyncio.Event()
        self._error: PeerError | None = None
        self._started = self._last = time.monotonic()
        self._owed = 0
        self._owe(len(item.start.tail))

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the run's spans. Empty: not traced."""
        return self.item.start.traceparent

    @property
    def goes_on(self) -> bool:
        """True if `part` may still return something."""
        return bool(self._parts) or not self.has_ended or self._error is not None

    def receive(self, result: verifier_pb2.RunResult) -> bool:
        """Keep a part. Returns True if it is the last."""
        try:
            is_last = self._take(result)
        except PeerError as error:
            if isinstance(error, PeerFaultError):
                self._side.note_fault(error)
                self._tell_to_stop()
            self.fail(error)
            return True
        self._side.record_verification()
        self._owe(0 if is_last or self._check.length >= self._granted else 1)
        self.has_ended = is_last
        if self._is_begun:
            self._side.deliver(self._arrived)
        else:  # the first token does not wait
            self._is_begun = True
            self._arrived.set()
        return is_last

    def fail(self, error: PeerError) -> None:
        """End with an error, after the parts that have arrived."""
        self.has_ended = True
        self._error = self._error or error
        self._owe(0)
        self._arrived.set()

    async def part(self) -> Part:
        """Return what has arrived since the last call, once there is something, and grant more.
        PeerError if the run has ended, with an error or without."""
        while not self._parts:
            if self.has_ended:
                error, self._error = self._error, None
                raise error or StreamLostError("the verifier has ended the run")
            self._arrived.clear()
            await self._arrived.wait()
        parts, self._parts = self._parts, []
        part = merged(parts)
        self.length += len(part.tokens)
        self._grant()
        return part

    def hint(self, message: hint_pb2.Hint) -> None:
        """Say what the next tokens may be. Does nothing once the run has ended."""
        if not self.has_ended:
            self._side.tell(verifier_pb2.RunItem(handle=self.item.handle, round=self.item.round, hint=message))

    def stop(self) -> None:
        """End the run; its KV stays. What still comes of it is dropped."""
        if not self.has_ended:
            self.has_ended = True
            self._tell_to_stop()
            self._side.withdraw(self)
            self._owe(0)

    def _take(self, result: verifier_pb2.RunResult) -> bool:
        now = time.monotonic()
        if result.HasField("error"):
            raise self._check.error(result)
        self._check.check(result, now - self._started)
        self._on_open()
        if result.tokens:
            self._parts.append(part_of(result, self._last, now))
            self._last = now
        return result.end != verifier_pb2.RUN_END_UNSPECIFIED

    def _grant(self) -> None:
        """Grant more once half of the lead is used up."""
        granted = min(self._limits.until_length, self.length + self._limits.lead)
        if self.has_ended or granted == self._granted or self.length + self._limits.lead // 2 < self._granted:
            return
        self._granted = granted
        self._tell(grant=verifier_pb2.GrantTokens(granted_length=granted))
        self._owe(1)

    def _tell_to_stop(self) -> None:
        self._tell(stop=verifier_pb2.StopRun())

    def _tell(self, *, grant: verifier_pb2.GrantTokens | None = None, stop: verifier_pb2.StopRun | None = None) -> None:
        self._side.tell(verifier_pb2.RunItem(handle=self.item.handle, round=self.item.round, grant=grant, stop=stop))

    def _owe(self, token_count: int) -> None:
        """State how many tokens the verifier owes by now."""
        owed, self._owed = self._owed, token_count
        if token_count == owed:
            return
        if token_count:
            self._side.owe(token_count)
        if owed:
            self._side.settle(owed)
