"""The health of a peer by its own report, read about once a second, and at once after a doubt.

A peer that is started again within that second reports nothing else than before. So the connection
is watched too: it ends with its process.
"""

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
        self.interruption_count = 0
        """Times that the peer stopped serving or that its connection ended. After each, another
        process may answer."""
        self._channel = channel
        self._stub = health_pb2_grpc.HealthStub(channel)
        self._doubted = asyncio.Event()
        self._changed = asyncio.Event()
        self._disconnected = False
        self._tasks: list[asyncio.Task[None]] = []

    def watch(self) -> None:
        """Start to read the health, unless that has started."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(each) for each in (self._watch(), self._watch_connection())]

    def doubt(self) -> None:
        """Read the health now, because the peer may have gone."""
        self._doubted.set()

    async def wait_until_serving(self) -> None:
        """Wait until the peer serves."""
        self.watch()
        while not self.serving:
            self._changed.clear()
            await self._changed.wait()

    async def wait_until_interrupted(self, count: int) -> None:
        """Wait until ``interruption_count`` is above ``count``. The health is read after that, so
        ``serving`` is about the process that answers now."""
        while self.interruption_count <= count:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Stop reading the health."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _watch_connection(self) -> None:
        while True:
            state = self._channel.get_state()
            await self._channel.wait_for_state_change(state)
            if state is grpc.ChannelConnectivity.READY:
                self._disconnected = True
                self.doubt()

    async def _watch(self) -> None:
        while True:
            self._doubted.clear()
            disconnected, self._disconnected = self._disconnected, False
            try:
                self._take(await self._ask(), disconnected)
            except Exception:
                log.exception("asking a peer's health failed on our side")
                self._disconnected |= disconnected
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

    def _take(self, serving: bool, disconnected: bool) -> None:
        changed = serving != self.serving
        self.serving = serving
        if disconnected or (changed and not serving):
            self.interruption_count += 1
        if disconnected or changed:
            self._changed.set()
        if changed:
            self.on_changed()


def _line(text: str) -> str:
    """Return a peer's text for a log: one line, and only the beginning of a long one."""
    return " ".join(text[:_LONGEST_TROUBLE].split())
