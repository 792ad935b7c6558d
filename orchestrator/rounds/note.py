"""Notes of rounds, to be looked at. Traces, metrics, logs and ``slipstream trace`` are
all readers of this.

A note is written while the round runs, so that one that fails or is cancelled has said what it can.
Times are of the monotonic clock, in seconds.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field

from orchestrator.peers.exchange import PeerTiming, Work
from orchestrator.rounds.result import RoundResult
from slipstream.telemetry import names
from slipstream.telemetry.tracing import Ending, ending_of

_MOST_SETBACKS = 32


@dataclass(eq=False, slots=True)
class ExchangeNote:
    """One request to a peer."""

    name: str
    address: str
    began: float
    span_id: int = 0
    traceparent: str = ""
    """What the peer's own spans hang under; empty if it need not make any."""
    draft_length: int = 0
    ended: float | None = None
    timing: PeerTiming | None = None
    ending: Ending | None = None
    """What it failed of."""
    left: bool = False
    """True if no round waited for its answer any more."""
    setbacks: tuple[tuple[float, str], ...] = ()
    """Answers that did not end it: when, and the reason."""

    def set_back(self, reason: str) -> None:
        """It is stated again, or asked for elsewhere."""
        if len(self.setbacks) < _MOST_SETBACKS:
            self.setbacks += ((time.monotonic(), reason),)

    def place(self, began: float, ended: float) -> None:
        """Note when it really began and ended."""
        self.began, self.ended = began, ended

    def finish(self, timing: PeerTiming) -> None:
        """Note that all has come; it may be late, with no round waiting any more."""
        self.timing = timing
        self.ended = self.ended or time.monotonic()

    def fail(self, error: BaseException) -> None:
        """Nothing comes."""
        self.ending = ending_of(error)
        self.ended = time.monotonic()

    def leave(self) -> None:
        """Note that no round waits for it any more."""
        self.left = True
        self.ended = time.monotonic()

    @property
    def network(self) -> float:
        """Seconds that the peer's own clock does not account for; 0 while there is no answer."""
        return 0.0 if self.timing is None else self.timing.network


@dataclass(eq=False, slots=True)
class RoundNote:
    """One round."""

    number: int
    """In its turn, from 1 on."""
    base_length: int
    """Committed tokens before it."""
    answered: float
    """When the verifier had last answered this session, or the turn began."""
    trace_prefix: str = ""
    """Of the traceparents that peers get; empty if they need not make spans."""
    began: float = field(default_factory=time.monotonic)
    session_count: int = 1
    """Sessions with a turn running, this one among them."""
    verify: ExchangeNote | None = None
    proposes: list[ExchangeNote] = field(default_factory=list)
    ended: float = 0.0
    ending: Ending | None = None
    """What it failed of."""
    outcome: str = ""
    """recovered, bonus or plain: the kind of next token; or cancelled or failed."""
    rung: str = "none"
    """Who made the proposal that was verified, such as draft, ngram or heads; plain if there was
    none, none if nothing was verified."""
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    """Of the tokens that it brought, those that the turn took."""
    waited: float = 0.0
    draft_failed: bool = False
    margin: float = math.inf
    is_step: bool = False
    """True for a step of a run."""

    def begin_verify(self, name: str) -> ExchangeNote:
        """The verification begins."""
        self.verify = self._exchange(name, "")
        return self.verify

    def begin_propose(self, name: str, address: str) -> ExchangeNote:
        """The draft is asked."""
        note = self._exchange(name, address)
        self.proposes.append(note)
        return note

    def end(self, result: RoundResult, committed: int) -> None:
        """It brought something, of which the turn took so many tokens. The result itself is not
        kept: a turn has thousands."""
        self.ended = time.monotonic()
        self.outcome, self.rung = result.next_token_kind, result.rung
        (self.drafted, self.accepted), self.committed = result.counted(committed), committed
        self.waited, self.margin = result.waited, result.margin
        self.draft_failed = result.draft_failed
        if result.moments is not None:
            began, self.ended = result.moments
            self.is_step, self.began = True, min(self.began, began)
            if self.verify is not None:
                self.verify.place(self.began + self.waited, self.ended)
        for work in result.works:
            self._add_work(work)

    def _add_work(self, work: Work) -> None:
        """Note work of a draft. It may have begun long before the round that used it."""
        note = self.begin_propose(names.PROPOSE, work.address)
        note.span_id = work.span_id or note.span_id
        note.place(max(work.began, self.began), max(work.ended, self.began))
        note.draft_length, note.timing = work.token_count, work.timing
        if work.error is not None:
            note.ending = ending_of(work.error)

    def fail(self, error: BaseException) -> None:
        """It brought nothing."""
        self.ended = time.monotonic()
        self.ending = ending_of(error)
        self.outcome = "cancelled" if self.ending.is_cancelled else "failed"

    @property
    def seconds(self) -> float:
        """From its beginning to its end."""
        return self.ended - self.began

    @property
    def verifier_idle(self) -> float:
        """Seconds that the verifier had nothing to do for the session before this round: on our
        side, and on the way. A run only waits for hints."""
        if self.is_step:
            return self.waited
        if self.verify is None:
            return 0.0
        return max(0.0, self.verify.began - self.answered) + self.verify.network

    def _exchange(self, name: str, address: str) -> ExchangeNote:
        note = ExchangeNote(name, address, time.monotonic())
        if self.trace_prefix:
            note.span_id = random.getrandbits(64) or 1
            note.traceparent = f"{self.trace_prefix}{note.span_id:016x}-01"
        return note
