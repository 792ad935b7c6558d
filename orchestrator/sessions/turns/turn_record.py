"""A turn's events as one growing record, read by any number of readers, each from a position and at
its own pace.

Writing never waits for reading: what a slow reader has not fetched yet merges into its next delta,
and so does what comes sooner than anybody reads. A record is bounded by its turn's most tokens.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.rounds.result import Origin
from orchestrator.sessions.conversation.session import Commit, FinishReason
from orchestrator.sessions.turns.statistics import TurnStatistics
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.sampling.outcome import TokenLogprobs

_MOST_TOKENS = 1024
"""In one delta: with log-probabilities of twenty tokens beside each that is a fifth of a
megabyte."""

_TOGETHER_SECONDS = 0.01
"""Readers hear of what is committed within so long of what they heard last together, its end apart:
nobody reads faster, and to tell them takes the time of a small model's step."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """What the turn runs on."""

    session_id: str
    request_id: str
    seed: int
    prompt_token_count: int


class TurnDelta(NamedTuple):
    """Tokens from ``token_offset`` on and the text that they made certain; log-probabilities if
    they were asked for."""

    text: str
    token_ids: Sequence[int]
    token_offset: int
    origins: Sequence[Origin] = ()
    text_byte_counts: Sequence[int] = ()
    """Bytes of UTF-8 in ``text`` that each token made certain."""
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """How the turn ended, what it used and how its rounds went. ``text`` had been held back until
    then.

    With an ``error`` it could not go on; what it had committed stays.
    """

    finish_reason: FinishReason
    prompt_token_count: int
    cached_token_count: int
    generated_token_count: int
    statistics: TurnStatistics
    text: str = ""
    error: Exception | None = None


TurnEvent = TurnStarted | TurnDelta | TurnEnded


class WrittenRecord(NamedTuple):
    """What a record holds for each token beside the token."""

    texts: Sequence[str]
    origins: Sequence[Origin]
    logprobs: Sequence[TokenLogprobs]
    prompt_logprobs: Sequence[TokenLogprobs]


class TurnRecord:
    """What has happened in one turn so far."""

    def __init__(self, turn: int, started: TurnStarted, *, tells_origins: bool = False) -> None:
        """``turn`` is its number in its session; ``tells_origins`` if deltas shall say how their
        tokens came about."""
        self.tells_origins = tells_origins
        self.turn = turn
        self.started = started
        self.ended: TurnEnded | None = None
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._origins: list[Origin] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: Sequence[TokenLogprobs] = ()
        self._readers: set[asyncio.Event] = set()
        self._told = -math.inf
        """When readers were, by the event loop's clock."""
        self._telling: asyncio.Handle | None = None
        self.broken_off: Exception | None = None
        """Set where the turn goes on, and nothing more comes here: why."""

    @property
    def token_count(self) -> int:
        """Committed tokens so far."""
        return len(self._tokens)

    @property
    def size(self) -> int:
        """Tokens and log-probabilities held."""
        scores = sum(1 + len(entry.top) for entry in (*self._logprobs[:1], *self._prompt_logprobs[:1]))
        return len(self._tokens) + scores * (len(self._logprobs) + len(self._prompt_logprobs))

    def add(
        self,
        commit: Commit,
        origins: Sequence[Origin],
        logprobs: Sequence[TokenLogprobs] = (),
        prompt_logprobs: Sequence[TokenLogprobs] = (),
    ) -> None:
        """What a round committed; of ``origins`` and ``logprobs`` there may be more than tokens."""
        self._tokens += commit.tokens
        self._texts += commit.texts
        self._origins += origins[: len(commit.tokens)]
        self._logprobs += logprobs[: len(commit.tokens)]
        self._prompt_logprobs = self._prompt_logprobs or prompt_logprobs
        if self._readers and self._telling is None and commit.tokens:
            loop = asyncio.get_running_loop()
            early = self._told + _TOGETHER_SECONDS - loop.time()
            # A moment later at least: the next round's request goes out before anybody is told of
            # this one.
            self._telling = loop.call_later(early, self._wake) if early > 0 else loop.call_soon(self._wake)

    def end(self, ended: TurnEnded) -> None:
        """Nothing follows."""
        self.ended = ended
        self._wake()

    def break_off(self, why: Exception) -> None:
        """The turn goes on elsewhere: readers get what is there, and then ``why``."""
        self.broken_off = why
        self._wake()

    def after(self, position: int) -> TurnDelta | None:
        """What follows the first ``position`` tokens, as far as it is there; None if nothing is."""
        end = min(len(self._tokens), position + _MOST_TOKENS)
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
        )

    @contextmanager
    def waking(self, event: asyncio.Event) -> Iterator[None]:
        """Inside, ``event`` is set whenever the record has grown."""
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
        """Those committed so far."""
        return self._tokens

    @property
    def written(self) -> WrittenRecord:
        """What a reader might ask for, as plain values."""
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
    ) -> TurnRecord:
        """The record of a turn that has ended, from what was written of it."""
        record = cls(turn, started, tells_origins=tells_origins)
        record._tokens = tokens
        record._texts, record._origins = list(written.texts), list(written.origins)
        record._logprobs, record._prompt_logprobs = list(written.logprobs), written.prompt_logprobs
        record.ended = ended
        return record

    def _wake(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        if self._readers:
            self._told = asyncio.get_running_loop().time()
        for event in self._readers:
            event.set()


class TurnReader:
    """Reads a record from a position on: `started`, what is there and what comes, and the end."""

    def __init__(self, record: TurnRecord, after_token_count: int = 0) -> None:
        """InvalidFieldsError if the turn has ended with fewer tokens; while it runs they may still
        come."""
        most = record.token_count if record.ended is not None else None
        if after_token_count < 0 or (most is not None and after_token_count > most):
            what = f"must be from 0 to {'what was received' if most is None else most}, but is {after_token_count}"
            raise InvalidFieldsError([FieldViolation("after_token_count", what)])
        self.record = record
        self.done = False
        self._position = after_token_count
        self._started = False

    def next(self) -> TurnEvent | None:
        """The next event that is there; None if none is just now, or if the last one was read. Why
        the record was broken off, if it was and nothing is left to read."""
        if not self._started:
            self._started = True
            return self.record.started
        delta = self.record.after(self._position)
        if delta is not None:
            self._position += len(delta.token_ids)
            return delta
        if self.record.broken_off is not None:
            raise self.record.broken_off
        if self.record.ended is None or self.done:
            return None
        self.done = True
        return self.record.ended


async def read_all(readers: Sequence[TurnReader]) -> AsyncGenerator[tuple[int, TurnEvent]]:
    """The events of several turns as they come, each with its reader's index, until all have
    ended."""
    grown = asyncio.Event()
    with ExitStack() as stack:
        for reader in readers:
            stack.enter_context(reader.record.waking(grown))
        while True:
            grown.clear()
            for index, reader in enumerate(readers):
                while (event := reader.next()) is not None:
                    yield index, event
            if all(reader.done for reader in readers):
                return
            await grown.wait()
