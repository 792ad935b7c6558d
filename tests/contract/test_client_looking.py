"""What both clients ask to look at an orchestrator, and that they hand out its answers and refusals
as they are."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from slipstream.client import AsyncClient, Client, PeerError
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc, status_pb2, trace_pb2


class Orchestrator(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """Knows one session, and answers with what it was asked."""

    def GetTurnTraces(self, request: orchestrator_pb2.GetTurnTracesRequest, context: Any) -> Any:
        if request.session_id != "known":
            context.abort(grpc.StatusCode.NOT_FOUND, "there is no such session")
        return orchestrator_pb2.GetTurnTracesResponse(turns=[trace_pb2.TurnTrace(turn=request.turn_count)])

    def GetStatus(self, request: orchestrator_pb2.GetStatusRequest, context: Any) -> Any:
        return orchestrator_pb2.GetStatusResponse(processes=[status_pb2.ProcessStatus(number=5)])


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(Orchestrator(), server)  # type: ignore[abstract]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(1).wait()


def test_the_blocking_client_gets_traces_and_status(address: str) -> None:
    with Client(address) as client:
        assert [turn.turn for turn in client.turn_traces("known").turns] == [1]
        assert [turn.turn for turn in client.turn_traces("known", 7, timeout=10).turns] == [7]
        assert client.status(timeout=10).processes[0].number == 5
        with pytest.raises(PeerError, match="no such session"):
            client.turn_traces("unknown")


async def test_the_asyncio_client_gets_traces_and_status(address: str) -> None:
    async with AsyncClient(address) as client:
        assert [turn.turn for turn in (await client.turn_traces("known")).turns] == [1]
        assert [turn.turn for turn in (await client.turn_traces("known", 7, timeout=10)).turns] == [7]
        assert (await client.status(timeout=10)).processes[0].number == 5
        with pytest.raises(PeerError, match="no such session"):
            await client.turn_traces("unknown")
