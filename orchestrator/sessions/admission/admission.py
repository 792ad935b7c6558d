"""Admission of turns: some begin now, some wait in a queue, and the others are refused.

::

    acquire --> permits at once | in the queue --> permits | OverloadedError, with a retry time
    permit.note_first_token: its prompt is read    permit.release: the next turn may begin

A burst waits, and a lasting overload is refused. While requests have found no permit for longer
than the queue's seconds, a request waits for at most a part of the usual time to a first token. If
it would have to wait longer, it is refused at once. So admitted requests get their first token
soon, however many requests arrive. This module makes no calls of its own: it knows what it is
told.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.errors import OverloadedError, ShuttingDownError
from orchestrator.sessions.admission.demand import (
    AdmissionPermit,
    AdmissionSettings,
    AdmissionWait,
    Capacity,
    Demand,
)
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.admission.shares import Share, Shares

MOST_WAITING = 1024
"""Requests in the queue."""

_PROMPT_SECONDS = 0.25
"""Longest time for the prompts that are being read when another turn begins. A prompt that takes
longer itself may wait for as long as it takes."""

_STANDING_SHARE = 0.25
"""Part of a turn's own first step, during a lasting overload. The prompts that are being read may
take so long, and so may the wait for a permit."""

_CALM_SECONDS = 2.0
"""Seconds without a waiting request after which the next one begins a new burst."""

_LONGER_THAN_MOST = 1.5
"""Factor over the mean duration of turns that hardly any turn exceeds."""

_OVERBOOKED = 0.7
"""Part of the time between two free permits that lies between two retries: not all callers come
back."""

_LACKING = {
    "turns": "",
    "kv_tokens": ", which leave too little memory for its KV",
    "prompts": ", and others' prompts are read first",
    "deadline": ", so it would not end before its deadline",
    "queue": ", which were first",
}
"""The words of a refusal for each limit."""

_SOONEST_RETRY, _LATEST_RETRY = 0.05, 10.0
_WEIGHT = 0.1
"""Weight of a new observation in a mean."""


@dataclass(order=True, slots=True)
class _Waiter:
    tag: float
    number: int
    demand: Demand = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)
    permits: list[AdmissionPermit] = field(compare=False, default_factory=list)
    since: float = field(compare=False, default=0.0)


class Admission:
    """Admits the turns of a process, before they are written down."""

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
        self._waiters: list[_Waiter] = []
        """Waiting requests, the next one first."""
        self._number = 0
        self._turn_seconds = self._token_seconds = 0.0
        """Mean seconds of a turn and of a token; 0 if there is no observation."""
        self._overload_began = self._last_overload = -math.inf
        self._booked_until = -math.inf
        self._is_closed = False
        self.refused = Counter(dict.fromkeys(_LACKING, 0))
        """Requests that were refused, by the limit that they met."""

    def measure(self, capacity: Capacity) -> None:
        """Admit by the measured capacity from now on."""
        self._capacity = capacity

    @property
    def permit_count(self) -> int:
        """Number of turns that may run at once."""
        settings = self._settings
        if settings.max_running_count is not None:
            return settings.max_running_count
        if self._capacity is None:
            return MOST_WAITING
        return -(-self._capacity.round_count // settings.process_count)

    @property
    def permits_set_by(self) -> str:
        """The source of the number of permits, by name."""
        if self._settings.max_running_count is not None:
            return "max_running_turns"
        return "nothing" if self._capacity is None else "measured"

    @property
    def limits(self) -> dict[str, tuple[int, int]]:
        """The use of each limit, and the limit. Callable from any thread."""
        found = {"turns": (len(self._running), self.permit_count), "queue": (len(self._waiters), MOST_WAITING)}
        if self._most_kv_tokens:
            found["kv_tokens"] = (self._kv_token_count, self._most_kv_tokens)
        return found

    def share_of(self, principal: Principal) -> Share:
        """Return a principal's account: what its limits leave it."""
        return self._shares.share_of(principal)

    @property
    def waiting_count(self) -> int:
        """Number of turns that wait."""
        return sum(waiter.demand.choice_count for waiter in list(self._waiters))

    async def acquire(self, demand: Demand, wait: AdmissionWait) -> list[AdmissionPermit]:
        """Return a permit for each choice, once there is room.

        OverloadedError; PrincipalLimitError; ShuttingDownError; MessageCancelledError if the wait
        is cancelled.
        """
        if wait.is_cancelled:
            raise wait.cancelled_error()
        self._refuse_closed()
        now = self._clock()
        share = self._shares.share_of(demand.principal)
        share.refuse_beyond(demand.principal.limits, demand.choice_count, demand.token_count, self._turn_seconds)
        if self._next() is None and self._fits(demand) and not self._ends_too_late(demand, wait.deadline - now, now):
            self._shares.charge(share, demand)
            return self._issue(demand, 0.0, now)
        if not self._has_permits(demand):
            self._note_overload(now)
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
        self._shares.charge(share, demand)
        insort(self._waiters, waiter)
        timer = asyncio.get_running_loop().call_later(longest, self._refuse, waiter)
        try:
            await wait.wait(waiter.turn)
        except BaseException:
            self._remove(waiter)
            raise
        finally:
            timer.cancel()
        return waiter.permits

    def admit_taken_over(self, demand: Demand) -> AdmissionPermit:
        """Return a permit for a turn that began in another process, beyond all limits."""
        self._shares.charge(self._shares.share_of(demand.principal), demand)
        return self._issue(demand, 0.0, self._clock())[0]

    def note_first_token(self, permit: AdmissionPermit) -> None:
        """Note that a permit's turn has its first token."""
        if permit in self._unanswered:
            self._unanswered.discard(permit)
            self._admit()

    def take_back(self, permit: AdmissionPermit, token_count: int) -> None:
        """Take a permit back after a turn of so many tokens."""
        self._running.discard(permit)
        self._unanswered.discard(permit)
        self._kv_token_count -= permit.kv_token_count
        if permit.is_in_use and token_count:
            seconds = self._clock() - permit.begun
            self._turn_seconds = _mean(self._turn_seconds, seconds)
            self._token_seconds = _mean(self._token_seconds, seconds / token_count)
        self._shares.refund(permit.demand, token_count, used=permit.is_in_use)
        self._admit()

    def close(self) -> None:
        """Admit no more turns, and refuse those that wait."""
        self._is_closed = True
        for waiter in self._waiters:
            if not waiter.turn.done():
                waiter.turn.set_exception(_shutting_down())

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise _shutting_down()

    def _fits(self, demand: Demand) -> bool:
        """Return whether a request may have its permits now. If no turn runs, it may have more than
        there are: else it would wait for ever."""
        return not self._running or (self._has_permits(demand) and self._has_time(demand))

    def _has_permits(self, demand: Demand) -> bool:
        return self._is_within(
            len(self._running) + demand.choice_count, self._kv_token_count + self._kv_token_count_of(demand)
        )

    def _can_ever_fit(self, demand: Demand) -> bool:
        """Return whether the request could ever run beside another turn."""
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
        """Tokens of memory for KV that turns share; 0 if that is not known, or not a limit."""
        if self._capacity is None or self._settings.max_running_count is not None:
            return 0
        return self._capacity.kv_token_count // self._settings.process_count

    def _has_time(self, demand: Demand) -> bool:
        """Return whether the prompts that are being read leave this one its time. A longer prompt
        counts as this one's length: this one passes it."""
        own = demand.fresh_length
        before = sum(min(own, permit.demand.fresh_length) for permit in self._unanswered)
        if self._capacity is None or not before:
            return True
        if self._overload_lasts(self._clock()):
            most = _STANDING_SHARE * self._capacity.step_seconds(own)
        else:
            most = max(_PROMPT_SECONDS, self._capacity.prompt_seconds(own))
        return self._capacity.prompt_seconds(before) <= most

    def _ends_too_late(self, demand: Demand, seconds: float, now: float) -> bool:
        """Return whether a turn with so many seconds left would probably be cut, while others want
        its permit."""
        if now - self._last_overload > _CALM_SECONDS:
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
            if not index:  # the other choices find the prompt in the cache
                self._unanswered.add(permit)
            permits.append(permit)
        return permits

    def _admit(self) -> None:
        """Admit waiting requests, as far as there is room."""
        while (waiter := self._next()) is not None and self._fits(waiter.demand):
            self._waiters.remove(waiter)
            if not waiter.turn.done():
                now = self._clock()
                self._shares.serve(waiter.tag)
                waiter.permits = self._issue(waiter.demand, now - waiter.since, now)
                waiter.turn.set_result(None)

    def _next(self) -> _Waiter | None:
        """Return the next waiting request that may run. A request that must run alone is passed
        while others run: those behind it might wait for ever."""
        return next((each for each in self._waiters if not self._running or self._can_ever_fit(each.demand)), None)

    def _remove(self, waiter: _Waiter) -> None:
        """Forget a request that no longer waits; release permits that it has just got."""
        if waiter.permits:
            for permit in waiter.permits:
                permit.release()
            return
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        self._shares.refund(waiter.demand, 0, used=False, count=waiter.demand.choice_count)
        self._admit()

    def _refuse(self, waiter: _Waiter) -> None:
        if not waiter.turn.done():
            waiter.turn.set_exception(self._refusal(waiter.demand))

    def _lacking(self, demand: Demand) -> str:
        """Return the limit that keeps a request from running now."""
        if len(self._running) + demand.choice_count > self.permit_count:
            return "turns"
        if not self._has_permits(demand):
            return "kv_tokens"
        return "queue" if self._has_time(demand) else "prompts"

    def _has_room_for(self, waiter: _Waiter) -> bool:
        """Return whether the queue has room. A request that is later in turn gives up its own."""
        if len(self._waiters) < MOST_WAITING:
            return True
        last = self._waiters[-1]
        if last < waiter:
            return False
        self._refuse(last)
        self._waiters.pop()
        return True

    def _note_overload(self, now: float) -> None:
        if now - self._last_overload > _CALM_SECONDS:
            self._overload_began = now
        self._last_overload = now

    def _overload_lasts(self, now: float) -> bool:
        """Return whether the overload lasts for longer than a burst."""
        is_there = now - self._last_overload <= _CALM_SECONDS
        return is_there and now - self._overload_began > self._settings.queue_seconds

    def _patience(self, demand: Demand, now: float) -> float:
        """Return how many seconds a new request may wait."""
        most = self._settings.queue_seconds
        if self._capacity is not None:
            most = max(most, self._capacity.prompt_seconds(demand.fresh_length))
        if now - self._last_overload > _CALM_SECONDS:
            return most
        step = 0.0 if self._capacity is None else self._capacity.step_seconds(demand.fresh_length)
        return max(self._overload_began + most - now, min(most, _STANDING_SHARE * step))

    def _seconds_until(self, ahead: int, demand: Demand) -> float:
        """Estimate how long a request with so many turns ahead waits, from how long turns last."""
        missing = len(self._running) + ahead + demand.choice_count - self.permit_count
        return max(1, missing) * self._interval

    @property
    def _interval(self) -> float:
        """Seconds between two released permits, by Little's law; 0 if that is not known."""
        return self._turn_seconds / max(1, len(self._running))

    def _refusal(self, demand: Demand, limit: str = "") -> OverloadedError:
        """Return a refusal with the time of a retry: each refused caller gets a later time, as
        permits are released."""
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


def _mean(mean: float, value: float) -> float:
    return mean + _WEIGHT * (value - mean) if mean else value


def _shutting_down() -> ShuttingDownError:
    return ShuttingDownError("the server is shutting down")
