"""Find out whether a peer refuses this orchestrator, whose token is not its own.

A refused stream reports it only by chance: if we write while it ends, grpc reports the write. So a
lost stream is a reason to ask by a separate call, which always learns why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc

from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError, error_of_call

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0


class Refusal:
    """Refusal by one peer: asked about when there is reason to doubt, and while it lasts."""

    def __init__(self, who: str, ask: Callable[[], Awaitable[object]], on_changed: Callable[[], None]) -> None:
        """Watch the peer called ``who``. ``ask`` makes a call that it refuses or not;
        ``on_changed`` is called when that changes."""
        self.error: PeerError | None = None
        """Error that callers get while the peer refuses. UNAVAILABLE: the peer is as good as away,
        and tokens may be in the middle of a rotation."""
        self._who = who
        self._ask = ask
        self._on_changed = on_changed
        self._watching: asyncio.Task[None] | None = None

    def doubt(self) -> None:
        """A stream was lost: this may be why."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Ask no more."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        try:
            while True:
                if not await self._is_refused():
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
        except Exception:
            log.exception("asking whether %s refuses us failed on our side", self._who)
        finally:
            self._watching = None

    async def _is_refused(self) -> bool:
        try:
            await self._ask()
        except grpc.aio.AioRpcError as failure:
            error = error_of_call(failure)
            self._note(error.reason == Reason.PEER_UNAUTHENTICATED)
        else:
            self._note(False)
        return self.error is not None

    def _note(self, refused: bool) -> None:
        if refused == (self.error is not None):
            return
        if refused:
            text = f"{self._who} refuses this orchestrator's token: --peer-token-file"
            self.error = PeerError(Code.UNAVAILABLE, Reason.PEER_UNAUTHENTICATED, text)
            log.error("%s", text)
        else:
            self.error = None
            log.info("%s takes this orchestrator's token again", self._who)
        self._on_changed()
