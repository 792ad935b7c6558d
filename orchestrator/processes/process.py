"""The life of an orchestrator process: listen, wait for the peers, serve, drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from contextlib import AsyncExitStack

from orchestrator.processes.pair import ServedPair
from orchestrator.processes.place import Place
from orchestrator.processes.settings import OrchestratorSettings
from orchestrator.processes.siblings import Siblings, SiblingService
from orchestrator.service import OrchestratorService
from orchestrator.sessions.store import random_id
from slipstream.errors import SlipstreamError
from slipstream.rpc.server import Server
from slipstream.telemetry.tracing import configure_tracing
from slipstream.v1 import orchestrator_pb2_grpc

log = logging.getLogger(__name__)

_COLLECTED_AFTER = 50_000
"""Objects made more than freed. A round makes hundreds and frees them by itself; only cycles wait for the collector."""


def run_process(settings: OrchestratorSettings, place: Place | None = None) -> None:
    """Serve until signalled; with a place, as one of several behind one port. Exits with one readable line if it cannot."""
    name = "orchestrator" if place is None else f"orchestrator {place.number}"
    logging.basicConfig(
        level=settings.log_level, format=f"%(asctime)s {name} %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    provider = configure_tracing("orchestrator")
    try:
        asyncio.run(_serve(settings, place))
    except SlipstreamError as error:
        sys.exit(f"orchestrator: {error}")
    finally:
        if provider is not None:
            provider.shutdown()


async def _serve(settings: OrchestratorSettings, place: Place | None) -> None:
    server = Server(
        settings.address,
        ("slipstream.v1.OrchestratorService",),
        drain_seconds=settings.drain_seconds,
        private=None if place is None else place.address(place.number),
    )
    async with AsyncExitStack() as stack:
        pair = ServedPair(settings, random_id if place is None else place.new_session_id)
        stack.push_async_callback(pair.close)
        service = OrchestratorService(pair)
        if place is not None:
            siblings = Siblings(place)
            stack.push_async_callback(siblings.close)
            service = SiblingService(pair, siblings)
        orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(service, server.grpc)
        if place is None:
            await _listen(server)
        connecting = asyncio.create_task(_connect(pair, server))
        await server.run_until_signalled()
        connecting.cancel()
    if connecting.done() and not connecting.cancelled() and (failure := connecting.exception()) is not None:
        raise failure


async def _listen(server: Server) -> None:
    log.info("listening on port %d", await server.start())


async def _connect(pair: ServedPair, server: Server) -> None:
    try:
        await _reach(pair)
        _spare_the_collector()
        # A connection stays with the process that got it: where the port is shared, only one that can serve may get any.
        if server.shares_port:
            await _listen(server)
    except SlipstreamError:
        server.draining.set()
        raise
    await server.set_serving(True)
    log.info("serving %s", pair.target.name)


async def _reach(pair: ServedPair) -> None:
    try:
        await pair.connect()
    except Exception as error:
        log.exception("cannot serve what the verifier hosts")
        raise SlipstreamError(f"cannot serve what the verifier hosts: {error}") from error


def _spare_the_collector() -> None:
    """What is there by now stays: looking through it for garbage again and again took a tenth of the time under load."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER)
