"""A turn's events as one growing record. Any number of readers read it, each from a position and at
its own pace.

Writing never waits for reading: tokens that a slow reader has not fetched merge into its next
delta. The turn's token limit bounds its record.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from opentelemetry.trace import SpanContext

from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.result import Origin, RoundResult
from orchestrator.sessions.conversation.turn_limits import Commit, FinishReason
from orchestrator.sessions.turns.statistics import TurnStatistics
from slipstream.sampling.outcome import TokenLogprobs

_MAX_DELTA_TOKENS = 1024
"""Tokens in one delta: with log-probabilities of twenty tokens each, a fifth of a megabyte."""

_BATCH_SECONDS = 0.01
"""Shortest time between two wake-ups of the readers, the end aside. Waking them takes as long as a
step of a small model."""


class Ending(Enum):
    """The reason for which a turn is cancelled."""

    CANCELLED = "cancelled"
    """The client cancelled the turn, or deleted the session."""
    SHUTTING_DOWN = "shutting_down"
    """The server shuts down."""
    CUT = "cut"
    """No process can resume the turn."""
    MOVED = "moved"
    """A different process runs the turn."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The first event of a turn."""

    session_id: str
    request_id: str
    seed: int
    prompt_token_count: int


class TurnDelta(NamedTuple):
    """Tokens from ``token_offset`` on and the text that they made certain, with log-probabilities
    if the caller requested them."""

    text: str
    token_ids: Sequence[int]
    token_offset: int
    origins: Sequence[Origin] = ()
    text_byte_counts: Sequence[int] = ()
    """Bytes of UTF-8 in ``text`` that each token made certain."""
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    tells_token_bytes: bool = False
    """True if the caller wants the bytes of tokens with their log-probabilities."""


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The last event of a turn: how it ended, what it used, and how its rounds went.

    ``text`` was held back until then. With an ``error`` the turn could not go on; the tokens that
    it had committed stay.
    """

    finish_reason: FinishReason
    prompt_token_count: int
    cached_token_count: int
    generated_token_count: int
    statistics: TurnStatistics
    text: str = ""
    error: Exception | None = None
    stop_string: str | None = None
    """The stop string that ended the turn, if one did."""


TurnEvent = TurnStarted | TurnDelta | TurnEnded


class WrittenRecord(NamedTuple):
    """The values that a record holds for each token beside the token."""

    texts: Sequence[str]
    origins: Sequence[Origin]
    logprobs: Sequence[TokenLogprobs]
    prompt_logprobs: Sequence[TokenLogprobs]


class TurnRecord:
    """The events of one turn so far."""

    def __init__(
        self, turn: int, started: TurnStarted, *, tells_origins: bool = False, tells_token_bytes: bool = False
    ) -> None:
        """``turn`` is its number in its session. With ``tells_origins`` deltas say how their tokens
        came about, with ``tells_token_bytes`` log-probabilities go with bytes."""
        self.tells_origins = tells_origins
        self._tells_token_bytes = tells_token_bytes
        self.turn = turn
        self.started = started
        self.ended: TurnEnded | None = None
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._origins: list[Origin] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: Sequence[TokenLogprobs] = ()
        self._readers: set[asyncio.Event] = set()
        self._last_wake = -math.inf
        """When readers were last woken, by the event loop's clock."""
        self._next_wake: asyncio.Handle | None = None
        self.broken_off: Exception | None = None
        """The reason why the turn goes on in another process, if it does: no more events follow."""

    @property
    def token_count(self) -> int:
        """Number of committed tokens so far."""
        return len(self._tokens)

    @property
    def size(self) -> int:
        """Number of tokens and log-probabilities held."""
        return len(self._tokens) + _logprob_count(self._logprobs) + _logprob_count(self._prompt_logprobs)

    def add(
        self,
        commit: Commit,
        origins: Sequence[Origin],
        logprobs: Sequence[TokenLogprobs] = (),
        prompt_logprobs: Sequence[TokenLogprobs] = (),
    ) -> None:
        """Add what a round committed; ``origins`` and ``logprobs`` may be longer than tokens."""
        self._tokens += commit.tokens
        self._texts += commit.texts
        self._origins += origins[: len(commit.tokens)]
        self._logprobs += logprobs[: len(commit.tokens)]
        self._prompt_logprobs = self._prompt_logprobs or prompt_logprobs
        if self._readers and self._next_wake is None and commit.tokens:
            loop = asyncio.get_running_loop()
            early = self._last_wake + _BATCH_SECONDS - loop.time()
            # Never at once: the next round's request goes out before readers hear of this one.
            self._next_wake = loop.call_later(early, self._wake) if early > 0 else loop.call_soon(self._wake)

    def end(self, ended: TurnEnded) -> None:
        """Add the last event."""
        self.ended = ended
        self._wake()

    def break_off(self, why: Exception) -> None:
        """Note that the turn goes on in another process: readers get what is there, then
        ``why``."""
        self.broken_off = why
        self._wake()

    def after(self, position: int) -> TurnDelta | None:
        """Return what follows the first ``position`` tokens so far; None if nothing does."""
        end = min(len(self._tokens), position + _MAX_DELTA_TOKENS)
        if end <= position:
            return None
        texts = self._texts[position:end]
        return TurnDelta(
            "".join(texts),
            self._tokens[position:end],
            position,
            self._origins[position:end],
            [len(text.encode()) for text in texts] if self.tells_origins else (),
            self._logprobs[position:end],
            () if position else self._prompt_logprobs,
            self._tells_token_bytes,
        )

    @contextmanager
    def waking(self, event: asyncio.Event) -> Iterator[None]:
        """Set ``event`` whenever the record has grown, while this context is open."""
        self._readers.add(event)
        try:
            yield
        finally:
            self._readers.discard(event)

    async def begun(self) -> None:
        """Wait for the first token, or for an end without one."""
        event = asyncio.Event()
        with self.waking(event):
            while not self._tokens and self.ended is None and self.broken_off is None:
                await event.wait()
                event.clear()

    @property
    def tokens(self) -> Sequence[int]:
        """Committed tokens so far."""
        return self._tokens

    @property
    def written(self) -> WrittenRecord:
        """The values for each token, to be written to the store."""
        return WrittenRecord(self._texts, self._origins, self._logprobs, self._prompt_logprobs)

    @classmethod
    def of_written(
        cls,
        turn: int,
        started: TurnStarted,
        tokens: list[int],
        written: WrittenRecord,
        ended: TurnEnded,
        *,
        tells_origins: bool,
        tells_token_bytes: bool = False,
    ) -> TurnRecord:
        """Return the record of a turn that has ended, from what the store holds of it."""
        record = cls(turn, started, tells_origins=tells_origins, tells_token_bytes=tells_token_bytes)
        record._tokens = tokens
        record._texts, record._origins = list(written.texts), list(written.origins)
        record._logprobs, record._prompt_logprobs = list(written.logprobs), written.prompt_logprobs
        record.ended = ended
        return record

    def _wake(self) -> None:
        if self._next_wake is not None:
            self._next_wake.cancel()
            self._next_wake = None
        if self._readers:
            self._last_wake = asyncio.get_running_loop().time()
        for event in self._readers:
            event.set()


def _logprob_count(entries: Sequence[TokenLogprobs]) -> int:
    """Return how many log-probabilities are held: all entries have as many as the first."""
    return len(entries) * (1 + len(entries[0].top)) if entries else 0


class TurnWatch(Protocol):
    """Observes one turn for traces, totals and logs. An exception would end the turn, so it raises
    nothing."""

    @property
    def trace_context(self) -> SpanContext:
        """The span that other spans link to."""

    def begin_round(self, number: int, base_length: int) -> RoundNote:
        """Return the note of the turn's next round."""

    def round_ended(self, note: RoundNote, result: RoundResult | None) -> None:
        """Observe the end of a round; without a result it failed or was cancelled."""

    def ended(self, ended: TurnEnded, text: str) -> None:
        """Observe the end of the turn. ``text`` is the whole answer."""
