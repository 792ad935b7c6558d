"""Which turns may begin, which wait for it and which are refused. What it knows is told to it;
nothing here asks anybody.

::

    acquire --> permits at once | in the queue --> permits | OverloadedError, with when to try again
    AdmissionPermit.note_first_token: the prompt is read        AdmissionPermit.release: the next may begin

A burst waits, and what lasts is refused: while arrivals have found no permit for longer than the
queue's seconds, whoever would have to wait for more than a part of the usual time to a first token
is told at once when to come back. So those who are let in get their first token soon, however many
ask.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.errors import MessageCancelledError, OverloadedError, ShuttingDownError
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.admission.shares import Shares

MOST_WAITING = 1024
"""Requests in the queue, whatever they wait for."""

_KV_SLACK = 64
"""Tokens of a turn beyond its prompt and its answer: a proposal, and the page that is not full."""

_PROMPT_SECONDS = 0.25
"""What prompts that are being read may take when another begins, or as long as its own where that
takes longer."""

_STANDING_SHARE = 0.25
"""Of a turn's own first step, where there is too much to do for long: what prompts that are being
read may take, and how long a permit is waited for."""

_CALM_SECONDS = 2.0
"""Without anybody who had to wait: then the next to do so is a burst's first."""

_LONGER_THAN_MOST = 1.5
"""Times what turns take on average that hardly any takes longer."""

_OVERBOOKED = 0.7
"""Of the time in which a permit comes free, between two that are told to come back: not all do."""

_LACKING = {
    "turns": "",
    "kv_tokens": ", which leave too little memory for its KV",
    "prompts": ", and others' prompts are read first",
    "deadline": ", so it would not end before its deadline",
    "queue": ", which were first",
}
"""What a refusal says of the limit that it is for."""

_SOONEST_RETRY, _LATEST_RETRY = 0.05, 10.0
_WEIGHT = 0.1
"""Of a new observation in a mean."""


class Capacity(Protocol):
    """How much can be done at once."""

    @property
    def round_count(self) -> int:
        """Turns that may run."""

    @property
    def kv_token_count(self) -> int:
        """Tokens that the memory for KV holds; 0: not known."""

    @property
    def kv_page_size(self) -> int:
        """Tokens that a piece of it holds, which is one sequence's."""

    def prompt_seconds(self, token_count: int) -> float:
        """What prompts of so many tokens in all take beside rounds."""

    def step_seconds(self, token_count: int) -> float:
        """What steps of so many tokens in all take."""

    def spare_drafts(self, seconds: float) -> None:
        """For so long, or until told again, draft tokens have only the rows that turns leave
        them."""


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """What an operator says."""

    max_running_count: int | None = None
    """Turns, whatever memory they take: what is taken from one for another is computed again. None:
    as measured."""
    queue_seconds: float = 10.0
    """The longest wait for a permit."""
    process_count: int = 1
    """Processes that share the verifiers: each has its part of what is measured."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks for. All counts are tokens but ``choice_count``, each of which is a
    turn."""

    principal: Principal
    prompt_length: int
    fresh_length: int
    """Of the prompt, what the session does not have yet."""
    room: int
    """That an answer may have."""
    choice_count: int = 1

    @property
    def token_count(self) -> int:
        """At most."""
        return self.prompt_length + self.choice_count * self.room

    def kv_token_counts(self, page_size: int) -> tuple[int, int]:
        """Of memory, in whole pages of so many tokens: what the choices share, which their prompt
        fills, and what each has."""
        shared = self.prompt_length // page_size * page_size
        own = self.prompt_length - shared + self.room + _KV_SLACK
        return shared, -(-own // page_size) * page_size


class AdmissionWait:
    """One who asks for permits: until when, and whether it still wants them."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """``seconds`` until its call's deadline; None: it has none."""
        self.deadline = math.inf if seconds is None else clock() + seconds
        self.is_cancelled = False
        self._waiting: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        """Want them no more: whoever waits is told MessageCancelledError, and whoever has them
        keeps them."""
        self.is_cancelled = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(_cancelled())

    async def wait(self, turn: asyncio.Future[None]) -> None:
        """For one's turn."""
        self._waiting = turn
        try:
            await turn
        finally:
            self._waiting = None


class AdmissionPermit:
    """One turn's. Given back once, by whoever has it."""

    def __init__(self, admission: Admission, demand: Demand, kv_token_count: int, waited: float, now: float) -> None:
        """``waited`` seconds for it."""
        self.demand = demand
        self.waited = waited
        self.begun = now
        self.kv_token_count = kv_token_count
        self.is_in_use = False
        """Whether a turn has it, which then gives it back."""
        self._admission = admission
        self._left = False

    def note_first_token(self) -> None:
        """The turn has its first token: its prompt is in nobody's way any more."""
        self._admission.note_first_token(self)

    def release(self, token_count: int = 0) -> None:
        """The turn has ended with so many tokens, or has not begun."""
        if not self._left:
            self._left = True
            self._admission.left(self, token_count)


@dataclass(order=True, slots=True)
class _Waiter:
    tag: float
    number: int
    demand: Demand = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)
    permits: list[AdmissionPermit] = field(compare=False, default_factory=list)
    since: float = field(compare=False, default=0.0)


class Admission:
    """All turns of a process pass through here before anything of them is written down."""

    def __init__(
        self,
        settings: AdmissionSettings,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """``jitter`` is in [0, 1)."""
        self._settings = settings
        self._clock = clock
        self._jitter = jitter
        self._capacity: Capacity | None = None
        self._shares = Shares(clock)
        self._running: set[AdmissionPermit] = set()
        self._unanswered: set[AdmissionPermit] = set()
        self._kv_token_count = 0
        self._waiters: list[_Waiter] = []  # who is next comes first
        self._number = 0
        self._turn_seconds = self._token_seconds = 0.0  # means; 0: nothing is known
        self._crowded_since = self._last_crowded = -math.inf
        self._booked_until = -math.inf
        self._is_closed = False
        self.refused = Counter(dict.fromkeys(_LACKING, 0))
        """Requests that were refused for want of a permit, by what there was too little of."""

    def measure(self, capacity: Capacity) -> None:
        """From now on there is something that says how much can be done."""
        self._capacity = capacity

    @property
    def permit_count(self) -> int:
        """Turns that may run at once."""
        settings = self._settings
        if settings.max_running_count is not None:
            return settings.max_running_count
        if self._capacity is None:
            return MOST_WAITING
        return -(-self._capacity.round_count // settings.process_count)

    @property
    def permits_set_by(self) -> str:
        """What says how many permits there are."""
        if self._settings.max_running_count is not None:
            return "max_running_turns"
        return "nothing" if self._capacity is None else "measured"

    @property
    def limits(self) -> dict[str, tuple[int, int]]:
        """What is limited: how much of it is used, and how much there is. Callable from any
        thread."""
        found = {"turns": (len(self._running), self.permit_count), "queue": (len(self._waiters), MOST_WAITING)}
        if self._most_kv_tokens:
            found["kv_tokens"] = (self._kv_token_count, self._most_kv_tokens)
        return found

    @property
    def waiting_count(self) -> int:
        """Turns that wait."""
        return sum(waiter.demand.choice_count for waiter in list(self._waiters))

    async def acquire(self, demand: Demand, wait: AdmissionWait) -> list[AdmissionPermit]:
        """A permit for each choice. OverloadedError, PrincipalLimitError, ShuttingDownError;
        MessageCancelledError for one who has given up."""
        if wait.is_cancelled:
            raise _cancelled()
        self._refuse_closed()
        now = self._clock()
        share = self._shares.of(demand.principal)
        share.refuse_beyond(demand.principal.limits, demand.choice_count, demand.token_count, self._turn_seconds)
        if self._next() is None and self._fits(demand) and not self._ends_too_late(demand, wait.deadline - now, now):
            self._shares.take(share, demand)
            return self._issue(demand, 0.0, now)
        if not self._has_permits(demand):
            self._note_crowd(now)
        if self._ends_too_late(demand, wait.deadline - now, now):
            raise self._refusal(demand, "deadline")
        waiter = _Waiter(self._shares.tag(share), self._number, demand, asyncio.get_running_loop().create_future())
        waiter.since = now
        self._number += 1
        longest = min(self._patience(demand, now), wait.deadline - now)
        before = (other.demand for other in self._waiters if other < waiter)
        ahead = sum(other.choice_count for other in before if self._can_ever_fit(other))
        if self._seconds_until(ahead, demand) > longest:
            raise self._refusal(demand)
        if not self._has_room_for(waiter):
            raise self._refusal(demand, "queue")
        self._shares.take(share, demand)
        insort(self._waiters, waiter)
        timer = asyncio.get_running_loop().call_later(longest, self._refuse, waiter)
        try:
            await wait.wait(waiter.turn)
        except BaseException:
            self._forget(waiter)
            raise
        finally:
            timer.cancel()
        return waiter.permits

    def admit_taken_over(self, demand: Demand) -> AdmissionPermit:
        """A permit for a turn that had begun elsewhere, whether there is one or not."""
        self._shares.take(self._shares.of(demand.principal), demand)
        return self._issue(demand, 0.0, self._clock())[0]

    def note_first_token(self, permit: AdmissionPermit) -> None:
        """See `AdmissionPermit`."""
        if permit in self._unanswered:
            self._unanswered.discard(permit)
            self._admit()

    def left(self, permit: AdmissionPermit, token_count: int) -> None:
        """See `AdmissionPermit`."""
        self._running.discard(permit)
        self._unanswered.discard(permit)
        self._kv_token_count -= permit.kv_token_count
        if permit.is_in_use and token_count:
            seconds = self._clock() - permit.begun
            self._turn_seconds = _mean(self._turn_seconds, seconds)
            self._token_seconds = _mean(self._token_seconds, seconds / token_count)
        self._shares.give_back(permit.demand, token_count, used=permit.is_in_use)
        self._admit()

    def close(self) -> None:
        """Nothing begins any more: who waits is told."""
        self._is_closed = True
        for waiter in self._waiters:
            if not waiter.turn.done():
                waiter.turn.set_exception(_shutting_down())

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise _shutting_down()

    def _fits(self, demand: Demand) -> bool:
        """Whether a request may have its permits now. Alone it may have more than there are: it
        would wait for ever."""
        return not self._running or (self._has_permits(demand) and self._has_time(demand))

    def _has_permits(self, demand: Demand) -> bool:
        return self._is_within(
            len(self._running) + demand.choice_count, self._kv_token_count + self._kv_token_count_of(demand)
        )

    def _can_ever_fit(self, demand: Demand) -> bool:
        """Whether there could be room beside another's turn."""
        return self._is_within(demand.choice_count, self._kv_token_count_of(demand))

    def _kv_token_counts(self, demand: Demand) -> tuple[int, int]:
        return demand.kv_token_counts(1 if self._capacity is None else self._capacity.kv_page_size)

    def _kv_token_count_of(self, demand: Demand) -> int:
        shared, own = self._kv_token_counts(demand)
        return shared + demand.choice_count * own

    def _is_within(self, turn_count: int, kv_token_count: int) -> bool:
        most = self._most_kv_tokens
        return turn_count <= self.permit_count and (not most or kv_token_count <= most)

    @property
    def _most_kv_tokens(self) -> int:
        """Tokens of memory for KV that turns share; 0: not known, or passed over."""
        if self._capacity is None or self._settings.max_running_count is not None:
            return 0
        return self._capacity.kv_token_count // self._settings.process_count

    def _has_time(self, demand: Demand) -> bool:
        """Whether the prompts that are being read leave another its time; a longer one lets it
        pass."""
        own = demand.fresh_length
        before = sum(min(own, permit.demand.fresh_length) for permit in self._unanswered)
        if self._capacity is None or not before:
            return True
        if self._has_stood(self._clock()):
            most = _STANDING_SHARE * self._capacity.step_seconds(own)
        else:
            most = max(_PROMPT_SECONDS, self._capacity.prompt_seconds(own))
        return self._capacity.prompt_seconds(before) <= most

    def _ends_too_late(self, demand: Demand, seconds: float, now: float) -> bool:
        """Whether a turn with so many seconds left is likely to be cut, while others want its
        permit."""
        if now - self._last_crowded > _CALM_SECONDS:
            return False
        return seconds < _LONGER_THAN_MOST * min(self._turn_seconds, self._token_seconds * demand.room)

    def _issue(self, demand: Demand, waited: float, now: float) -> list[AdmissionPermit]:
        permits = []
        shared, own = self._kv_token_counts(demand)
        for index in range(demand.choice_count):
            kv = own + (0 if index else shared)
            permit = AdmissionPermit(self, demand, kv, waited, now)
            self._kv_token_count += kv
            self._running.add(permit)
            if not index:  # the others find the prompt in the cache
                self._unanswered.add(permit)
            permits.append(permit)
        return permits

    def _admit(self) -> None:
        """Let in who is next, as far as there is room."""
        while (waiter := self._next()) is not None and self._fits(waiter.demand):
            self._waiters.remove(waiter)
            if not waiter.turn.done():
                now = self._clock()
                self._shares.serve(waiter.tag)
                waiter.permits = self._issue(waiter.demand, now - waiter.since, now)
                waiter.turn.set_result(None)

    def _next(self) -> _Waiter | None:
        """One that has to be alone is passed over while others run: who comes after would wait for
        what may never be."""
        return next((each for each in self._waiters if not self._running or self._can_ever_fit(each.demand)), None)

    def _forget(self, waiter: _Waiter) -> None:
        """One who waits no more, or has just got what it does not want any more."""
        if waiter.permits:
            for permit in waiter.permits:
                permit.release()
            return
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        self._shares.give_back(waiter.demand, 0, used=False, count=waiter.demand.choice_count)
        self._admit()

    def _refuse(self, waiter: _Waiter) -> None:
        if not waiter.turn.done():
            waiter.turn.set_exception(self._refusal(waiter.demand))

    def _lacking(self, demand: Demand) -> str:
        """What a request that may not have its permits now has too little of."""
        if len(self._running) + demand.choice_count > self.permit_count:
            return "turns"
        if not self._has_permits(demand):
            return "kv_tokens"
        return "queue" if self._has_time(demand) else "prompts"

    def _has_room_for(self, waiter: _Waiter) -> bool:
        """Whether the queue has room, if need be that of one who comes after."""
        if len(self._waiters) < MOST_WAITING:
            return True
        last = self._waiters[-1]
        if last < waiter:
            return False
        self._refuse(last)
        self._waiters.pop()
        return True

    def _note_crowd(self, now: float) -> None:
        if now - self._last_crowded > _CALM_SECONDS:
            self._crowded_since = now
        self._last_crowded = now
        if self._capacity is not None:
            self._capacity.spare_drafts(_CALM_SECONDS)

    def _has_stood(self, now: float) -> bool:
        """Whether the crowd is no burst."""
        is_there = now - self._last_crowded <= _CALM_SECONDS
        return is_there and now - self._crowded_since > self._settings.queue_seconds

    def _patience(self, demand: Demand, now: float) -> float:
        """Seconds that one who comes now may wait."""
        most = self._settings.queue_seconds
        if self._capacity is not None:
            most = max(most, self._capacity.prompt_seconds(demand.fresh_length))
        if now - self._last_crowded > _CALM_SECONDS:
            return most
        step = 0.0 if self._capacity is None else self._capacity.step_seconds(demand.fresh_length)
        return max(self._crowded_since + most - now, min(most, _STANDING_SHARE * step))

    def _seconds_until(self, ahead: int, demand: Demand) -> float:
        """How long one with so many turns ahead is likely to wait: permits come free as turns are
        measured to last."""
        missing = len(self._running) + ahead + demand.choice_count - self.permit_count
        return max(1, missing) * self._interval

    @property
    def _interval(self) -> float:
        """Seconds between two permits that come free, by Little's law; 0: not known."""
        return self._turn_seconds / max(1, len(self._running))

    def _refusal(self, demand: Demand, limit: str = "") -> OverloadedError:
        """With a time to come back at: those who are refused get one after another, as permits come
        free."""
        now = self._clock()
        soonest = now + self._seconds_until(self.waiting_count, demand)
        self._booked_until = min(now + _LATEST_RETRY, max(self._booked_until, soonest))
        seconds = max(_SOONEST_RETRY, self._booked_until - now) * (0.9 + 0.2 * self._jitter())
        self._booked_until += _OVERBOOKED * demand.choice_count * self._interval
        running, waiting = len(self._running), self.waiting_count
        limit = limit or self._lacking(demand)
        self.refused[limit] += 1
        return OverloadedError(
            f"{running} turns run and {waiting} wait{_LACKING[limit]}: try again in {seconds:.1f} s",
            seconds,
            limit=limit,
        )


@contextmanager
def releasing_unused(permits: Sequence[AdmissionPermit]) -> Iterator[None]:
    """After this the permits that no turn has taken are others'."""
    try:
        yield
    finally:
        for permit in permits:
            if not permit.is_in_use:
                permit.release()


def _mean(mean: float, value: float) -> float:
    return mean + _WEIGHT * (value - mean) if mean else value


def _shutting_down() -> ShuttingDownError:
    return ShuttingDownError("the server is shutting down")


def _cancelled() -> MessageCancelledError:
    return MessageCancelledError("the message was cancelled before its turn began")
