"""The watch over a verifier that no longer answers, because its process is stopped or its model
thread hangs. It counts as away until it answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from orchestrator.peers.progress import Look, Progress
from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5
"""Seconds between two probes. Only one probe is in transit at a time."""

_LONGEST_PROBE_SECONDS = 60.0
"""Longest wait for a probe. Each probe waits twice as long as the one before, because other items
may be ahead of it. After that, the probe or its answer was lost on a stream that looks alive."""


class VerifierStalledError(PeerError):
    """The verifier is reachable but makes no progress. Nothing is lost: the position is stated
    again to it or to another verifier."""

    def __init__(self, address: str) -> None:
        super().__init__(Code.UNAVAILABLE, Reason.VERIFIER_STALLED, f"the verifier at {address} has stopped answering")


class StallWatch:
    """Looks at a verifier that owes answers and is silent. Once it has stalled, probes it until it
    answers."""

    def __init__(
        self,
        progress: Progress,
        *,
        look: Callable[[], Awaitable[Look | None]],
        probe: Callable[[], Awaitable[object]],
        probe_seconds: float,
        renew: Callable[[], None],
        on_changed: Callable[[bool], None],
    ) -> None:
        """``look`` reads the verifier's step count. ``probe`` makes it verify one token, which may
        at first take ``probe_seconds``. ``renew`` gives up its stream. ``on_changed`` is called
        when it stalls and when it answers again."""
        self._probe_seconds = probe_seconds
        self._renew = renew
        self._progress = progress
        self._look = look
        self._probe = probe
        self._on_changed = on_changed
        self._watching: asyncio.Task[None] | None = None
        self.is_stalled = False
        """True if the peer may not be asked now."""

    @contextmanager
    def owing(self, token_count: int) -> Iterator[None]:
        """Count an item of ``token_count`` tokens as owed within the context. A normal exit means
        that it was verified."""
        self.owe(token_count)
        try:
            yield
            self.record_verification()
        finally:
            self.settle(token_count)

    def owe(self, token_count: int) -> None:
        """Count an item of ``token_count`` tokens as owed."""
        self._progress.owe(token_count)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    def record_verification(self) -> None:
        """Record that an item, or a part of it, was verified."""
        self._progress.record_verification()

    def settle(self, token_count: int) -> None:
        """Count an item no more, verified or not."""
        self._progress.settle(token_count)

    async def close(self) -> None:
        """Stop watching."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        """Watch while anything is owed."""
        try:
            while self._progress.is_owed:
                if pause := self._progress.seconds_to_look:
                    await asyncio.sleep(pause)
                    continue
                asked = time.monotonic()
                self._progress.record_look(asked, await self._look())
                if self._progress.is_owed and self._progress.is_stalled:
                    self._turn(stalled=True)
                    await self._until_it_answers()
                    self._turn(stalled=False)
        finally:
            self._watching = None

    def _turn(self, *, stalled: bool) -> None:
        self.is_stalled = stalled
        self._on_changed(stalled)

    async def _until_it_answers(self) -> None:
        patience = self._probe_seconds
        while True:
            try:
                async with asyncio.timeout(patience):
                    await self._probe()
                return
            except TimeoutError:
                patience = min(2 * patience, _LONGEST_PROBE_SECONDS)
                self._renew()
            except PeerError as error:
                if _is_answer(error):
                    return
            except Exception:
                log.exception("probing a verifier failed on our side")
            await asyncio.sleep(_PAUSE_SECONDS)


def _is_answer(error: PeerError) -> bool:
    """True if this answer to a probe shows that the peer is there. A full queue does not: it may be
    full because its thread hangs."""
    return error.code is not Code.UNAVAILABLE and error.reason != Reason.QUEUE_FULL
