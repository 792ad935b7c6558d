"""The health of a peer by its own report, read about once a second, and at once after a doubt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 1.0
_PERIOD_WHILE_AWAY_SECONDS = 0.25
_DEADLINE_SECONDS = 2.0
"""Deadline of one health check. A busy service answers sooner; a stopped one counts as away after
this and a period."""

_LONGEST_TROUBLE = 500


class PeerHealth:
    """A peer's health, read from the first `watch` on."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.serving = False
        """The last answer. False before the first one, and while none arrives."""
        self.answering = False
        """True if a process answers. One that does not serve yet may be loading its model."""
        self.trouble = ""
        """Reason that no process answers, in grpc's words, such as a refused connection or an
        untrusted certificate."""
        self.on_changed: Callable[[], None] = lambda: None
        """Called at each change of ``serving``."""
        self._stub = health_pb2_grpc.HealthStub(channel)
        self._doubted = asyncio.Event()
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Start to read the health, unless that has started."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    def doubt(self) -> None:
        """Read the health now, because the peer may have gone."""
        self._doubted.set()

    async def wait_until_serving(self) -> None:
        """Wait until the peer serves."""
        self.watch()
        while not self.serving:
            self._changed.clear()
            await self._changed.wait()

    async def wait_until_away(self) -> None:
        """Wait until the peer no longer serves."""
        while self.serving:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Stop reading the health."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        while True:
            self._doubted.clear()
            try:
                self._take(await self._ask())
            except Exception:
                log.exception("asking a peer's health failed on our side")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD_SECONDS if self.serving else _PERIOD_WHILE_AWAY_SECONDS):
                    await self._doubted.wait()

    async def _ask(self) -> bool:
        request = health_pb2.HealthCheckRequest()
        try:
            response = await self._stub.Check(request, timeout=_DEADLINE_SECONDS)  # type: ignore[attr-defined]
        except grpc.aio.AioRpcError as error:
            self.answering, self.trouble = False, _line(error.details() or "")
            return False
        self.answering, self.trouble = True, ""
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def _take(self, serving: bool) -> None:
        if serving == self.serving:
            return
        self.serving = serving
        self._changed.set()
        self.on_changed()


def _line(text: str) -> str:
    """Return a peer's text for a log: one line, and only the beginning of a long one."""
    return " ".join(text[:_LONGEST_TROUBLE].split())
