"""Run the orchestrator: ``python -m orchestrator --verifier HOST:PORT --draft HOST:PORT``."""

from __future__ import annotations

import asyncio
import logging
import sys

from orchestrator.config import OrchestratorSettings
from orchestrator.pair import ServedPair
from orchestrator.service import OrchestratorService
from slipstream.errors import SlipstreamError
from slipstream.rpc.server import Server
from slipstream.telemetry.tracing import configure_tracing
from slipstream.v1 import orchestrator_pb2_grpc

log = logging.getLogger(__name__)


async def _serve(settings: OrchestratorSettings) -> None:
    server = Server(settings.address, ("slipstream.v1.OrchestratorService",), drain_seconds=settings.drain_seconds)
    pair = ServedPair(settings)
    orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(OrchestratorService(pair), server.grpc)
    port = await server.start()
    log.info("listening on port %d", port)
    connecting = asyncio.create_task(_connect(pair, server))
    await server.run_until_signalled()
    failure = connecting.exception() if connecting.done() else None
    connecting.cancel()
    await pair.close()
    if failure is not None:
        sys.exit(f"orchestrator: cannot serve what the verifier hosts: {failure}")


async def _connect(pair: ServedPair, server: Server) -> None:
    try:
        await pair.connect()
    except Exception:
        log.exception("cannot serve what the verifier hosts")
        server.draining.set()
        raise
    await server.set_serving(True)
    log.info("serving %s", pair.target.name)


def main() -> None:
    """Read the settings and serve until signalled."""
    settings = OrchestratorSettings()
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s orchestrator %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    provider = configure_tracing("orchestrator")
    try:
        asyncio.run(_serve(settings))
    except SlipstreamError as error:
        sys.exit(f"orchestrator: {error}")
    finally:
        if provider is not None:
            provider.shutdown()


if __name__ == "__main__":
    main()
