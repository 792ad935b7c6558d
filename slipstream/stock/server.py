"""The server behind a verifier from its start on: lost and back, or another one.

A server may come back with another model, or with other weights under the same name. No text goes
on with them: every job is refused until the first ones are back, or the verifier is started again.
"""

from __future__ import annotations

import asyncio
import logging
import time

from slipstream.engine.errors import UnsupportedModelError
from slipstream.stock.protocol import EngineLostError, EngineRefusedError, StockEngine, StockFacts
from slipstream.stock.trial import Trial

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Most seconds between two comparisons of a server's rows with those of its start. A connection
that the server has closed asks for one at once: however soon it is back, it may be another one."""
_RETRY_SECONDS = 0.5


class StockServer:
    """One stock engine's server. It belongs to one event loop."""

    def __init__(
        self, engine: StockEngine, facts: StockFacts, trial: Trial, *, patience_seconds: float, look_seconds: float
    ) -> None:
        """``facts`` and ``trial`` are those of the start. ``patience_seconds``: how long a job
        tries again after the server was lost."""
        self.engine = engine
        self.facts = facts
        self._trial = trial
        self._patience = patience_seconds
        self._look_seconds = look_seconds
        self._looked = time.monotonic()
        self._lost_count = engine.lost_count()
        """Connections that the server had closed before the last comparison."""
        self._is_lost = False
        self._looking: asyncio.Task[EngineLostError | EngineRefusedError | None] | None = None

    async def check(self) -> None:
        """Compare the server with that of the start, unless that was done a moment ago and the
        server has closed no connection since. EngineRefusedError if it is another one,
        EngineLostError if it cannot be asked."""
        is_recent = time.monotonic() < self._looked + self._look_seconds
        if is_recent and not self._is_lost and self.engine.lost_count() == self._lost_count:
            return
        if self._looking is None:  # all jobs wait for one look
            self._looking = asyncio.get_running_loop().create_task(self._look())
        if (error := await asyncio.shield(self._looking)) is not None:
            raise type(error)(str(error))

    async def wait(self, error: EngineLostError, since: float) -> None:
        """Wait a moment before the next `check`. Raises the error if patience is over."""
        if time.monotonic() - since >= self._patience:
            raise error
        if not self._is_lost:
            log.warning("%s; running turns wait for it up to %g s", error, self._patience)
        self._is_lost = True
        await asyncio.sleep(_RETRY_SECONDS)

    async def close(self) -> None:
        """End a look and close all connections."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await self.engine.close()

    async def _look(self) -> EngineLostError | EngineRefusedError | None:
        """Return what is wrong with the server; None if it is that of the start."""
        lost_count = self.engine.lost_count()
        try:
            await self._compare()
        except (EngineLostError, EngineRefusedError) as error:
            if not self._is_lost and isinstance(error, EngineRefusedError):
                log.error("%s", error)
            self._is_lost = True
            return error
        finally:
            self._looking = None
        if self._is_lost:
            log.info("%s is back", self.facts.engine)
        self._is_lost, self._looked, self._lost_count = False, time.monotonic(), lost_count
        return None

    async def _compare(self) -> None:
        if self._is_lost:
            try:
                facts = await self.engine.connect()
            except UnsupportedModelError as error:
                raise _another_one(str(error)) from error
            if facts != self.facts:
                raise _another_one(f"{facts}, before {self.facts}")
        distance = await self._trial.distance(self.engine)
        if distance > self._trial.tolerance:
            raise _another_one(
                f"with other weights: the log-probabilities of a text differ by {distance:.2g} on average"
            )


def _another_one(how: str) -> EngineRefusedError:
    return EngineRefusedError(f"the stock engine came back as another one ({how}): start the verifier again")
