"""Stages of a service's start, in the words with which it logs them. The command line shows the
newest one."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from slipstream.compilation import PROGRESS

LOOKING = "looking on the hub for"
DOWNLOADING = "downloading"
LOADING = "loading the model"
CHECKING = "checking the weights"
WARMING = "measuring step times and warming up"
TRANSLATING = "the draft guesses in its own vocabulary:"
_STAGES = (LOOKING, DOWNLOADING, LOADING, CHECKING, PROGRESS, WARMING)


QUIET_SECONDS = 1.0
"""Loading that takes no longer is not worth a line."""
_TELL_SECONDS = 1.0
"""Seconds from one line about bytes to the next."""


def last_stage(lines: Iterable[str]) -> str:
    """Return the stage that a service has reached, with how far it is, by the lines that it has
    logged. Empty: it has logged none."""
    stage = ""
    for line in lines:
        stage = next((line[line.index(words) :] for words in _STAGES if words in line), stage)
    return stage


def remark(lines: Iterable[str]) -> str:
    """Return what a service has logged about its vocabulary; empty if it is its target's."""
    return next((line[line.index(TRANSLATING) :] for line in lines if TRANSLATING in line), "")


class _Progress(ABC):
    """Tells how much of a stage is done, at most once a second."""

    def __init__(
        self,
        stage: str,
        tell: Callable[[str], None],
        *,
        quiet_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``tell`` gets lines such as "downloading org/name: 1.5 of 4.4 GB", none of them in the
        first ``quiet_seconds``, and the last one only if there were others."""
        self._stage = stage
        self._tell = tell
        self._clock = clock
        self._next = clock() + quiet_seconds
        self._told = False

    def reach(self, count: float, total: float) -> None:
        """Count what is done so far, and in all."""
        now = self._clock()
        if not 0 < count <= total or (now < self._next and not (self._told and count == total)):
            return
        self._next, self._told = now + _TELL_SECONDS, True
        self._tell(f"{self._stage}: {self._figure(count, total)}")

    @abstractmethod
    def _figure(self, count: float, total: float) -> str: ...


class ByteProgress(_Progress):
    """Tells how many bytes of a stage are done, at most once a second."""

    def _figure(self, count: float, total: float) -> str:
        unit, size = ("GB", 1e9) if total >= 1e9 else ("MB", 1e6)
        return f"{count / size:.1f} of {total / size:.1f} {unit}"


class PartProgress(_Progress):
    """Tells how many parts of a model are done, at most once a second."""

    def __init__(self, stage: str, tell: Callable[[str], None], parts: str, *, quiet_seconds: float = 0.0) -> None:
        """``parts`` says of what kind they are: "layers"."""
        super().__init__(stage, tell, quiet_seconds=quiet_seconds)
        self._parts = parts

    def _figure(self, count: float, total: float) -> str:
        return f"{count:.0f} of {total:.0f} {self._parts}"
