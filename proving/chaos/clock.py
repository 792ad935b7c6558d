"""The wall clock of served processes, which can be set while they run. A library of twenty lines
replaces libc's clock. The monotonic clocks do not change, as when an administrator or NTP steps a
machine's clock."""

from __future__ import annotations

import ctypes
import hashlib
import struct
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

_KEPT = Path(__file__).parents[2] / "build" / "clock"

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long *offset;
static int (*of_libc)(clockid_t, struct timespec *);

__attribute__((constructor)) void slipstream_look_at_offset(void) {
    const char *path = getenv("SLIPSTREAM_CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY) : -1;
    void *seen = file < 0 ? MAP_FAILED : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    of_libc = dlsym(RTLD_NEXT, "clock_gettime");
    offset = seen == MAP_FAILED ? 0 : seen;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    if (!of_libc) slipstream_look_at_offset();
    int failed = of_libc(which, now);
    if (!failed && offset && which == CLOCK_REALTIME) now->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return into ? (*into = now.tv_sec) : now.tv_sec;
}
"""


@cache
def can_be_set() -> bool:
    """Return True if the library exists or can be compiled."""
    try:
        shared_object()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def shared_object() -> Path:
    """Return the library, compiled at its first use: one file for all clocks. OSError or
    CalledProcessError if it cannot be compiled."""
    name = hashlib.sha256(f"{sysconfig.get_platform()} {_SOURCE}".encode()).hexdigest()[:16]
    compiled = _KEPT / f"{name}.so"
    if not compiled.exists():
        _KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_KEPT) as directory:
            source, fresh = Path(directory, "clock.c"), Path(directory, "clock.so")
            source.write_text(_SOURCE)
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-O2", "-o", fresh, source, "-ldl"], check=True, capture_output=True
            )
            fresh.replace(compiled)  # others may compile it too
    return compiled


def look_again() -> None:
    """Update a forked process that runs with the library: its wall clock becomes what its
    environment says now."""
    look = getattr(ctypes.CDLL(None), "slipstream_look_at_offset", None)
    if look is not None:
        look()


class ClockOfDay:
    """One wall clock for all processes that are started with its `environment`."""

    def __init__(self, directory: Path) -> None:
        """The directory stores the clock's offset."""
        self._offset = directory / "clock-offset"
        self.set(0)
        self.environment = {"LD_PRELOAD": str(shared_object()), "SLIPSTREAM_CLOCK_OFFSET": str(self._offset)}

    def set(self, seconds: int) -> None:
        """Set the offset of the processes' wall clock, in seconds, positive or negative."""
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))
