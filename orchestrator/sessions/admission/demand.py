"""The terms of admission: what a request demands, the capacity there is, and permits."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from orchestrator.errors import MessageCancelledError
from orchestrator.sessions.admission.principal import Principal

_KV_SLACK = 64
"""Tokens of a turn beside its prompt and its answer: a proposal, and the page that is not full."""


class Capacity(Protocol):
    """The measured capacity of the verifiers."""

    @property
    def round_count(self) -> int:
        """Number of turns that may run."""

    @property
    def kv_token_count(self) -> int:
        """Number of tokens that the memory for KV holds; 0 if that is not known."""

    @property
    def kv_page_size(self) -> int:
        """Tokens of a page, which belongs to one sequence."""

    def prompt_seconds(self, token_count: int) -> float:
        """Return how long prompts of so many tokens together take beside rounds."""

    def step_seconds(self, token_count: int) -> float:
        """Return how long steps of so many tokens together take."""


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """The operator's settings."""

    max_running_count: int | None = None
    """Turns that may run, without regard to memory: a turn whose KV is evicted computes it again.
    None: the measured number."""
    queue_seconds: float = 10.0
    """Longest wait for a permit."""
    process_count: int = 1
    """Processes that share the verifiers: each has its part of the measured capacity."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The capacity that a request needs. Counts are tokens, but for ``choice_count``, each of which
    is a turn."""

    principal: Principal
    prompt_length: int
    fresh_length: int
    """Prompt tokens that the session does not have yet."""
    room: int
    """Tokens that an answer may have."""
    choice_count: int = 1

    @property
    def token_count(self) -> int:
        """Most tokens of the prompt and all answers."""
        return self.prompt_length + self.choice_count * self.room

    def kv_token_counts(self, page_size: int) -> tuple[int, int]:
        """Return the memory that the choices share, and the memory of each, in tokens.

        Both are whole pages. The choices share the pages that their prompt fills.
        """
        shared = self.prompt_length // page_size * page_size
        own = self.prompt_length - shared + self.room + _KV_SLACK
        return shared, -(-own // page_size) * page_size


class AdmissionWait:
    """A request's wait for permits: it ends at a deadline, or when the caller cancels it."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """The call has so many ``seconds`` until its deadline; None: it has no deadline."""
        self.deadline = math.inf if seconds is None else clock() + seconds
        self.is_cancelled = False
        self._waiting: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        """End the wait with MessageCancelledError. Permits that the request already has stay."""
        self.is_cancelled = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(self.cancelled_error())

    async def wait(self, admitted: asyncio.Future[None]) -> None:
        """Wait until the request is admitted. Raises what the future raises."""
        self._waiting = admitted
        try:
            await admitted
        finally:
            self._waiting = None

    @staticmethod
    def cancelled_error() -> MessageCancelledError:
        """Return the error of a wait that was cancelled."""
        return MessageCancelledError("the message was cancelled before its turn began")


class PermitIssuer(Protocol):
    """The part of `Admission` that a permit calls."""

    def note_first_token(self, permit: AdmissionPermit) -> None:
        """Note that a permit's turn has its first token."""

    def take_back(self, permit: AdmissionPermit, token_count: int) -> None:
        """Take a permit back after a turn of so many tokens."""


class AdmissionPermit:
    """The permit of one turn. Its holder releases it once."""

    def __init__(self, issuer: PermitIssuer, demand: Demand, kv_token_count: int, waited: float, now: float) -> None:
        """``waited`` is how many seconds the request waited for it."""
        self.demand = demand
        self.waited = waited
        self.begun = now
        self.kv_token_count = kv_token_count
        self.is_in_use = False
        """True if a turn holds it, and releases it when it ends."""
        self._issuer = issuer
        self._is_released = False

    def note_first_token(self) -> None:
        """Note that the turn has its first token: its prompt delays no other turn any more."""
        self._issuer.note_first_token(self)

    def release(self, token_count: int = 0) -> None:
        """Release the permit: the turn has ended with so many tokens, or has not begun."""
        if not self._is_released:
            self._is_released = True
            self._issuer.take_back(self, token_count)


@contextmanager
def releasing_unused(permits: Sequence[AdmissionPermit]) -> Iterator[None]:
    """Release, at the end of the context, the permits that no turn uses."""
    try:
        yield
    finally:
        for permit in permits:
            if not permit.is_in_use:
                permit.release()
