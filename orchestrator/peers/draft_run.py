"""A draft that guesses on, as the orchestrator sees it: a receiver of its hints."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from orchestrator.peers.checking.errors import checked_error
from orchestrator.peers.checking.faults import PeerFaultError
from orchestrator.peers.checking.hints import HintCheck
from orchestrator.peers.exchange import PeerTiming, timing_of
from slipstream.rpc.status import PeerError
from slipstream.wire.v1 import draft_pb2, hint_pb2

_MOST_TOKENS_A_COMMIT = 4096
"""Most hint tokens that are passed on between two commits. A hint repeats the tokens of those that
it replaces, so the verifier keeps an eighth of them at most."""

_USUAL_SHARE = 0.2
"""Weight of the newest interval between hints in the usual one."""


class GuessTerms(NamedTuple):
    """Terms on which a draft guesses."""

    until_length: int
    """The sequence's length at which the target's run ends."""
    least_length: int
    """Tokens to guess even if they are unlikely; 0: as many as are likely."""
    price: float
    """Tokens that the target would choose in each second of the draft's work; 0 if the draft has
    processors of its own."""


class HintListener(Protocol):
    """The receiver of a draft's hints."""

    def take_hints(self, hints: Sequence[hint_pb2.Hint], timing: PeerTiming) -> None:
        """Receive checked hints and the times of the work that made them."""

    def fail(self, error: PeerError) -> None:
        """Receive the error that ended the guessing."""


class DraftRunSide(Protocol):
    """The draft service as one of its runs sees it."""

    def tell(self, item: draft_pb2.DraftItem) -> None:
        """Send an item that has no result."""

    def withdraw(self, run: DraftRun) -> None:
        """Stop waiting for a run's results."""

    def note_fault(self, fault: PeerFaultError) -> None:
        """Count a result that no draft can send."""


class DraftRun:
    """One stretch of guessing, from its start on. Nothing waits for it."""

    def __init__(
        self,
        side: DraftRunSide,
        item: draft_pb2.DraftItem,
        check: HintCheck,
        listener: HintListener,
        on_open: Callable[[], None],
    ) -> None:
        """``item`` starts it; the caller sends it. ``on_open`` is called with the first result: the
        handle is open."""
        self.item = item
        self.has_ended = False
        """True if no more hints come."""
        self._side, self._check, self._listener, self._on_open = side, check, listener, on_open
        self._started = self._last = time.monotonic()
        self._usual = 0.0
        self._is_resting = False
        self._left = _MOST_TOKENS_A_COMMIT

    @property
    def silence(self) -> float:
        """Seconds for which a hint has been missing; 0 while the draft rests."""
        return 0.0 if self._is_resting else time.monotonic() - self._last

    @property
    def usual_interval(self) -> float:
        """Usual seconds between two results; 0 before the second."""
        return self._usual

    def receive(self, result: draft_pb2.DraftResult) -> bool:
        """Pass on the hints of a result. Returns True if it is the last."""
        try:
            if result.HasField("error"):
                raise checked_error(result.error)
            self._check.check(result, time.monotonic() - self._started)
        except PeerError as error:
            if isinstance(error, PeerFaultError):
                self._side.note_fault(error)
                self._tell(stop=draft_pb2.StopDraft())
            self.fail(error)
            return True
        self._on_open()
        self._take(result)
        self.has_ended = result.final
        return result.final

    def fail(self, error: PeerError) -> None:
        """End with an error."""
        self.has_ended = True
        self._listener.fail(error)

    def commit(self, position: int, tokens: Sequence[int], price: float) -> None:
        """Tell what the target has chosen from a ``position`` on. ``price`` as in `GuessTerms`."""
        if self.has_ended:
            return
        self._left = _MOST_TOKENS_A_COMMIT
        self._check.length = max(self._check.length, position + len(tokens))
        self._tell(commit=draft_pb2.CommitTokens(position=position, tokens=tokens, price=price))

    def stop(self) -> None:
        """End the guessing; its KV stays. What still comes of it is dropped."""
        if not self.has_ended:
            self.has_ended = True
            self._tell(stop=draft_pb2.StopDraft())
            self._side.withdraw(self)

    def _take(self, result: draft_pb2.DraftResult) -> None:
        now = time.monotonic()
        interval, self._last = now - self._last, now
        if not self._is_resting:
            self._usual += (interval - self._usual) * _USUAL_SHARE
        hints = []
        self._is_resting = not any(hint.HasField("next_due") for hint in result.hints)
        for hint in result.hints:
            self._left -= len(hint.tokens)
            if self._left >= 0:
                hints.append(hint)
        self._listener.take_hints(hints, timing_of(result.timing, interval))

    def _tell(self, *, commit: draft_pb2.CommitTokens | None = None, stop: draft_pb2.StopDraft | None = None) -> None:
        self._side.tell(draft_pb2.DraftItem(handle=self.item.handle, round=self.item.round, commit=commit, stop=stop))
