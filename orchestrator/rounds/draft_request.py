"""A session's requests to the draft for a proposal under the ratio test.

A request never blocks: it leaves, and its sink takes what comes back. Every request states its
position, so a lost handle and a cut cache are mended by stating it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.errors import DraftLateError
from orchestrator.peers.breaker import Breaker
from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.sequence import REASONS_TO_RESTATE, PeerSequence, Position
from orchestrator.rounds.note import ExchangeNote
from orchestrator.speculation.proposal import Proposal
from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import SamplingRule

_MAX_RESTATEMENTS = 3


class RequestSide(Protocol):
    """The draft service as a request sees it."""

    def send(
        self, request: DraftRequest, sequence: PeerSequence, position: Position, traceparent: str
    ) -> Callable[[], None]:
        """Put the request's item on the stream; returns what withdraws the request from it."""

    def answered(self, request: DraftRequest, timing: PeerTiming | None) -> None:
        """The draft is there, and this is what the answer took; None if it is one that says why
        there is none."""

    def failed(self, request: DraftRequest, reason: str) -> None:
        """The draft is not, or not for this session."""

    def fell_back(self, reason: str) -> None:
        """A request has failed, and its turn goes on without."""


@dataclass(eq=False, slots=True)
class SessionDrafting:
    """One session's side of drafting: its sequence on the draft, the latest request, and what came
    of the last ones."""

    place: float = 1.0
    """Place of the session among all, from 0 to 1, by a hash of its id: a draft on trial gets those
    below its share."""
    beside: tuple[SessionDrafting, ...] = ()
    """The session's sides at other drafts, if it drafts with several."""
    sequence: PeerSequence = field(default_factory=PeerSequence)
    request: DraftRequest | None = None
    finished: list[PeerTiming] = field(default_factory=list)
    failed: bool = False
    breaker: Breaker = field(default_factory=Breaker)
    """Open where the draft is late for this session, though others are answered."""
    turn_count: int = 0
    """Turns that have begun."""
    released: bool = False
    """Nothing may be asked any more."""

    def begin_turn(self, shared_length: int) -> None:
        """A new prompt, or a turn undone: only the first ``shared_length`` tokens are what they
        were."""
        self.turn_count += 1
        self.sequence.limit(shared_length)
        self.leave_request()
        self.take_finished()
        self.take_failed()

    def leave_request(self) -> None:
        """Wait for the latest request no more, and forget it: it refers to this, and a session that
        is over would wait for the collector."""
        if self.request is not None:
            self.request.leave()
            self.request = None

    def move(self) -> None:
        """Another draft will be asked from here on, which knows nothing yet."""
        self.leave_request()
        self.sequence = PeerSequence()
        self.breaker = Breaker()

    def take_finished(self) -> list[PeerTiming]:
        """Timings of the requests answered since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def take_failed(self) -> bool:
        """Return whether the draft failed since the last call."""
        failed, self.failed = self.failed, False
        return failed


def draftings_of(session_place: float, count: int) -> tuple[SessionDrafting, ...]:
    """Return a new session's sides at ``count`` drafts."""
    draftings = tuple(SessionDrafting(session_place) for _ in range(count))
    for one in draftings:
        one.beside = tuple(other for other in draftings if other is not one)
    return draftings


class DraftRequest:
    """One request on its way: a sink for what the draft answers."""

    def __init__(
        self,
        side: RequestSide,
        drafting: SessionDrafting,
        tokens: Sequence[int],
        rule: SamplingRule,
        draft_length: int,
        exchange: ExchangeNote,
        *,
        is_probe: bool = False,
    ) -> None:
        """A probe only sees whether the draft is there: no round waits for it."""
        self.is_probe = is_probe
        if is_probe:
            exchange.leave()
        self.length = len(tokens)
        self.sent = time.monotonic()
        self.done = asyncio.Event()
        self.rule = rule
        self.draft_length = draft_length
        self.timing: PeerTiming | None = None
        self.proposal: Proposal | None = None
        """What has come, while a round waits for it."""
        self._side = side
        self.drafting = drafting
        self._sequence = drafting.sequence  # this draft's, though the session may have moved when the answer comes
        self._handle = self._sequence.handle
        self._tokens = tokens
        self._turn = drafting.turn_count
        self._exchange = exchange
        self._restatements = 0
        self.withdraw: Callable[[], None] = _nothing_to_withdraw
        """Have the stream forget it. Nothing happens once it is over."""
        self.start()

    def start(self) -> None:
        """Send the item."""
        if self.drafting.released:
            self.leave()
            return
        position = self._sequence.position(self._tokens, self.length)
        self._handle = self._sequence.handle
        self.withdraw = self._side.send(self, self._sequence, position, self._exchange.traceparent)

    def finish(self, proposal: Proposal, timing: PeerTiming) -> None:
        """Take the answer. The proposal is kept if a round waits for it."""
        if not self.done.is_set():
            self.proposal = proposal
        self.timing = timing
        self._exchange.finish(timing)
        if self._turn == self.drafting.turn_count:  # another turn's tokens may be others
            self._sequence.learn(self.length)
        self.drafting.finished.append(timing)
        self._side.answered(self, timing)
        self._end()

    def fail(self, error: PeerError) -> None:
        """Mend what stating the position again mends; else the draft has failed this request."""
        waited_for = not self.done.is_set()
        # If the session has moved, no one else would close a handle that was opened again.
        is_ours = self._sequence is self.drafting.sequence
        is_mended = error.reason in REASONS_TO_RESTATE and self._restatements < _MAX_RESTATEMENTS
        if waited_for and is_ours and is_mended:
            self._restatements += 1
            self._exchange.set_back(error.reason)
            self._sequence.correct(self._handle, error.reason, error.metadata)
            self.start()
            return
        if error.reason == Reason.STALE_ROUND:  # a newer request of our own took its place
            self.leave()
        else:
            self.drafting.failed = self.drafting.failed or not self.is_probe
            if waited_for and not self.is_probe:
                self._exchange.fail(error)
                self._side.fell_back(error.reason)
            self._end()
            if is_the_drafts_fault(error) or self._restatements == _MAX_RESTATEMENTS:
                self._side.failed(self, error.reason)
            elif self.is_probe:
                self._side.answered(self, None)

    def give_up(self) -> None:
        """It is late: no round waits for it any more. Nothing happens if it has ended just now."""
        if self.done.is_set():
            return
        late = DraftLateError("the draft did not answer within its deadline")
        self._exchange.fail(late)
        self.drafting.failed = True
        self.withdraw()
        self._end()
        self._side.fell_back(late.reason)
        self._side.failed(self, late.reason)

    def leave(self) -> None:
        """No round waits for it any more. Nothing happens if it has ended."""
        if not self.done.is_set():
            self._exchange.leave()
            self._end()

    def _end(self) -> None:
        """It is over for the round that waits; what still comes is taken. What would withdraw it
        refers to it: a circle that only the collector would find, and there are thousands a
        second."""
        self.withdraw = _nothing_to_withdraw
        self.done.set()


def _nothing_to_withdraw() -> None:
    """The request is not on the stream."""


def is_the_drafts_fault(error: PeerError) -> bool:
    """Return True if other sessions should leave the draft alone too, False if the trouble is one
    session's."""
    if error.reason in (Reason.QUEUE_FULL, Reason.TOKENIZER_MISMATCH):  # the latter came back as a stranger
        return True
    return error.code in (Code.UNAVAILABLE, Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED, Code.DEADLINE_EXCEEDED)
