"""A verifier that has stopped answering, its process stopped or its model's thread hung, is away
until it answers."""

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
"""Between two probes. One alone is on its way at a time."""

_LONGEST_PROBE_SECONDS = 60.0
"""Each waits twice as long as the one before, for others may have asked first; then it or its
answer has been lost on a stream that stands."""


class VerifierStalledError(PeerError):
    """The verifier is there and gets on with nothing. Nothing is lost: it, or another one, is told
    the position again."""

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
        """``look`` asks how far it is, ``probe`` has it verify something, which at first may take
        ``probe_seconds``; ``renew`` gives its stream up, and ``on_changed`` is told when it has
        stalled and when it answers again."""
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
        """While an item of so many tokens is waited for; leaving this without an error says that it
        was verified."""
        self._progress.owe(token_count)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            yield
            self._progress.verified()
        finally:
            self._progress.settle(token_count)

    async def close(self) -> None:
        """Watch no more."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        """While anything is owed."""
        try:
            while self._progress.is_owed:
                if pause := self._progress.seconds_to_look:
                    await asyncio.sleep(pause)
                    continue
                asked = time.monotonic()
                self._progress.looked(asked, await self._look())
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
