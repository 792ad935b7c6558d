"""The threads that compute a forward together, for compiled code: a leader, helpers, and phases
whose work they share.

A phase is so many units of work. Each thread begins with those of its own share, and goes on with
what is left of the others'. A thread waits for units that are begun, never for another thread. So a
helper whose core another process has taken holds up its current unit, and nothing else. Where each
phase waited for every thread, a walk beside one busy process took up to nine times as long as by
one thread alone.

Forwards are numbered, and a ticket (how many units of a share are taken) says which one it is of. A
helper that comes late, when its forward has been finished, finds tickets that are full or of a
later forward. What it reads of the step may be a later one's by then, so a unit that it takes
counts only if the forward is not finished yet.

::

    team      [8]  a line of a cache for each: the newest forward's number, the last one that is
                   finished, helpers that sleep, a mutex, a condition
    tickets   [phase][thread + 1][8]   units taken of each thread's share; the last: units done
"""

from __future__ import annotations

import ctypes
import platform
import threading
import weakref
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types

from slipstream.engine.compiled.lanes import INT64, at, compiled, llvm_function, operation
from slipstream.engine.compiled.memory import aligned_zeros

Share = tuple[int, int, int, int, int]
"""A thread's number, how many there are, where it has memory of its own, the team's place and the
forward's number."""

_LINE = 64
_NEWEST, _FINISHED, _SLEEPING, _MUTEX, _CONDITION, _TICKETS = (line * _LINE for line in (0, 1, 2, 3, 5, 7))
_COUNT_BITS = 24
_COUNTS = (1 << _COUNT_BITS) - 1
_LOOKS = 1_000
"""With a pause between them, before a thread lets go of its core: some twenty microseconds."""
_NAP_MICROSECONDS = 50
_STOPPED = -1


def _pausing(builder: Any) -> Any:
    if platform.machine() in ("x86_64", "AMD64"):
        return builder.call(llvm_function(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
    return builder.fence("acquire")


def _writing(builder: Any, address: Any, value: Any) -> Any:
    builder.store_atomic(value, at(builder, address, INT64), "seq_cst", 8)
    return builder.fence("seq_cst")  # nothing that follows may be seen before it


def _swapping(builder: Any, address: Any, expected: Any, value: Any) -> Any:
    found = builder.cmpxchg(at(builder, address, INT64), expected, value, "seq_cst", "seq_cst")
    return builder.extract_value(found, 0)


_pause = operation(types.void, (), _pausing)
_read_shared = operation(
    types.int64, (types.int64,), lambda b, address: b.load_atomic(at(b, address, INT64), "seq_cst", 8)
)
_write_shared = operation(types.void, (types.int64, types.int64), _writing)
_swap_if = operation(types.int64, (types.int64, types.int64, types.int64), _swapping)
"""Return the number that was there, and replace it if it is the expected one."""


def _of_the_system(name: str) -> Any:
    """A function of the C library that takes addresses, for compiled code."""
    function = getattr(ctypes.CDLL(None), name)
    llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    count = 2 if name == "pthread_cond_wait" else 1
    return types.ExternalFunction(name, types.int32(*[types.int64] * count))


_lock, _unlock = _of_the_system("pthread_mutex_lock"), _of_the_system("pthread_mutex_unlock")
_wait, _wake_all = _of_the_system("pthread_cond_wait"), _of_the_system("pthread_cond_broadcast")
_nap = _of_the_system("usleep")


@compiled
def _taken(ticket: int, number: int, size: int) -> tuple[int, int]:
    """Half of what is left of a share of forward ``number``, taken: the first unit and the one
    after the last. None if there is none left, or that forward is over."""
    seen = _read_shared(ticket)
    while True:
        of = seen >> _COUNT_BITS
        first = seen & _COUNTS if of == number else 0
        if of > number or first >= size:
            return 0, 0
        end = first + (size - first + 1 >> 1)
        found = _swap_if(ticket, seen, (number << _COUNT_BITS) + end)
        if found == seen:
            return first, end
        seen = found


@compiled
def _add_done(ticket: int, number: int, count: int) -> None:
    seen = _read_shared(ticket)
    while True:
        before = seen & _COUNTS if seen >> _COUNT_BITS == number else 0
        found = _swap_if(ticket, seen, (number << _COUNT_BITS) + before + count)
        if found == seen:
            return
        seen = found


@compiled
def _wait_until_done(share: Share, ticket: int, count: int) -> None:
    """Until all units of a phase are done, or the forward is over."""
    _, _, _, team, number = share
    looks = 0
    while _read_shared(ticket) != (number << _COUNT_BITS) + count and _read_shared(team + _FINISHED) < number:
        looks += 1
        if looks < _LOOKS:
            _pause()
        else:
            _nap(_NAP_MICROSECONDS)  # the thread that has the unit may want this core


@compiled
def take(share: Share, phase: int, count: int) -> tuple[int, int]:
    """Units of a phase of ``count`` that fall to this thread, the first and the one after the last;
    none if none are left."""
    thread, threads, _, team, number = share
    tickets = team + _TICKETS + phase * (threads + 1) * _LINE
    for turn in range(threads):
        of = (thread + turn) % threads
        start = count * of // threads
        first, end = _taken(tickets + of * _LINE, number, count * (of + 1) // threads - start)
        if first < end:
            return (start + first, start + end) if _read_shared(team + _FINISHED) < number else (0, 0)
    return 0, 0


@compiled
def complete(share: Share, phase: int, count: int, done: int) -> None:
    """Count the units of a phase that this thread has ``done``, and wait until the others have done
    the rest."""
    _, threads, _, team, number = share
    ticket = team + _TICKETS + (phase * (threads + 1) + threads) * _LINE
    if done:
        _add_done(ticket, number, done)
    if count:
        _wait_until_done(share, ticket, count)


@compiled
def begin(team: int) -> int:
    """Have the helpers walk, too; the number of the forward that begins."""
    number: int = _read_shared(team + _NEWEST) + 1
    _write_shared(team + _NEWEST, number)
    if _read_shared(team + _SLEEPING):
        _lock(team + _MUTEX)
        _wake_all(team + _CONDITION)
        _unlock(team + _MUTEX)
    return number


@compiled
def finish(team: int, number: int) -> None:
    """Mark a forward as done, so that no thread begins a unit of it."""
    _write_shared(team + _FINISHED, number)


@compiled
def next_forward(team: int, last: int) -> int:
    """Wait for another forward than ``last``; -1 if there will be none."""
    looks = 0
    while _read_shared(team + _NEWEST) == last and looks < _LOOKS:
        looks += 1
        _pause()
    if _read_shared(team + _NEWEST) == last:
        _lock(team + _MUTEX)
        _write_shared(team + _SLEEPING, _read_shared(team + _SLEEPING) + 1)
        while _read_shared(team + _NEWEST) == last:
            _wait(team + _CONDITION, team + _MUTEX)
        _write_shared(team + _SLEEPING, _read_shared(team + _SLEEPING) - 1)
        _unlock(team + _MUTEX)
    newest: int = _read_shared(team + _NEWEST)
    return newest


class Team:
    """The memory that threads meet in, and the helpers, which end with it."""

    def __init__(self, threads: int, phase_count: int) -> None:
        self._threads = threads
        size = _TICKETS + phase_count * (threads + 1) * _LINE
        self._memory = aligned_zeros([size // 8], np.int64)
        self.place = self._memory.ctypes.data
        library = ctypes.CDLL(None)
        library.pthread_mutex_init(ctypes.c_void_p(self.place + _MUTEX), None)
        library.pthread_cond_init(ctypes.c_void_p(self.place + _CONDITION), None)
        weakref.finalize(self, _stop, self._memory)

    def start(self, walk: Callable[[int], None]) -> None:
        """Each helper calls ``walk`` with its number, from 1 on, which returns once `next_forward`
        says that there is none. Helpers keep what they look at, but not the team, which ends
        with its last other reference."""
        for thread in range(1, self._threads):
            arguments = self._memory, walk, thread
            threading.Thread(target=_help, args=arguments, name=f"helper {thread}", daemon=True).start()


def _help(memory: np.ndarray, walk: Callable[[int], None], thread: int) -> None:
    walk(thread)
    del memory  # it was needed until now


def _stop(memory: np.ndarray) -> None:
    place, library = memory.ctypes.data, ctypes.CDLL(None)
    library.pthread_mutex_lock(ctypes.c_void_p(place + _MUTEX))
    memory[_NEWEST // 8] = _STOPPED
    library.pthread_cond_broadcast(ctypes.c_void_p(place + _CONDITION))
    library.pthread_mutex_unlock(ctypes.c_void_p(place + _MUTEX))
