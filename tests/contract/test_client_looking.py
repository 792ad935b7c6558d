"""What both clients ask to look at an orchestrator, and that they hand out its answers and refusals
as they are."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest

from slipstream.client import AsyncClient, Client, PeerError, Tokens
from slipstream.v1 import acceptance_pb2, orchestrator_pb2, orchestrator_pb2_grpc, status_pb2, trace_pb2


class Orchestrator(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """Knows one session, and answers with what it was asked."""

    tokenized: orchestrator_pb2.TokenizeRequest | None = None

    def GetTurnTraces(self, request: orchestrator_pb2.GetTurnTracesRequest, context: Any) -> Any:
        if request.session_id != "known":
            context.abort(grpc.StatusCode.NOT_FOUND, "there is no such session")
        return orchestrator_pb2.GetTurnTracesResponse(turns=[trace_pb2.TurnTrace(turn=request.turn_count)])

    def GetStatus(self, request: orchestrator_pb2.GetStatusRequest, context: Any) -> Any:
        return orchestrator_pb2.GetStatusResponse(processes=[status_pb2.ProcessStatus(number=5)])

    def GetAcceptanceHistory(self, request: orchestrator_pb2.GetAcceptanceHistoryRequest, context: Any) -> Any:
        for hour in range(request.hour_count):
            row = acceptance_pb2.AcceptanceHour(task=f"task {hour}")
            yield orchestrator_pb2.GetAcceptanceHistoryResponse(hours=[row])

    def Tokenize(self, request: orchestrator_pb2.TokenizeRequest, context: Any) -> Any:
        self.tokenized = request
        return orchestrator_pb2.TokenizeResponse(
            token_ids=[4, 5], token_count=2, context_length=9, token_strings=["a", "b"]
        )

    def Detokenize(self, request: orchestrator_pb2.DetokenizeRequest, context: Any) -> Any:
        skipped = "without" if request.skip_special_tokens else "with"
        return orchestrator_pb2.DetokenizeResponse(text=f"{list(request.token_ids)} {skipped}")


@pytest.fixture
def orchestrator() -> Orchestrator:
    return Orchestrator()  # type: ignore[abstract]


@pytest.fixture
def address(orchestrator: Orchestrator) -> Iterator[str]:
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(orchestrator, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(1).wait()


def test_the_blocking_client_gets_traces_and_status(address: str) -> None:
    with Client(address) as client:
        assert [turn.turn for turn in client.turn_traces("known").turns] == [1]
        assert [turn.turn for turn in client.turn_traces("known", 7, timeout=10).turns] == [7]
        assert client.status(timeout=10).processes[0].number == 5
        history = client.acceptance_history(3, timeout=10)
        assert [hour.task for hour in history.hours] == ["task 0", "task 1", "task 2"]
        assert not client.acceptance_history().hours
        with pytest.raises(PeerError, match="no such session"):
            client.turn_traces("unknown")


async def test_the_asyncio_client_gets_traces_and_status(address: str) -> None:
    async with AsyncClient(address) as client:
        assert [turn.turn for turn in (await client.turn_traces("known")).turns] == [1]
        assert [turn.turn for turn in (await client.turn_traces("known", 7, timeout=10)).turns] == [7]
        assert (await client.status(timeout=10)).processes[0].number == 5
        assert len((await client.acceptance_history(3, timeout=10)).hours) == 3
        with pytest.raises(PeerError, match="no such session"):
            await client.turn_traces("unknown")


TOKENS = Tokens((4, 5), 9, ("a", "b"))
SAID = [("user", "hi"), ("assistant", "ho")]
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
TEXT_ASKED = orchestrator_pb2.TokenizeRequest(text="", add_special_tokens=False)
CHAT_ASKED = orchestrator_pb2.TokenizeRequest(
    conversation={"messages": [{"role": "ROLE_USER", "content": "hi"}, {"role": "ROLE_ASSISTANT", "content": "ho"}]},
    add_generation_prompt=False,
    template_time=NOON,
    token_strings=True,
)


def test_the_blocking_client_tokenizes(address: str, orchestrator: Orchestrator) -> None:
    with Client(address) as client:
        assert client.tokenize("", add_special_tokens=False) == TOKENS
        assert orchestrator.tokenized == TEXT_ASKED
        asked = client.tokenize(SAID, add_generation_prompt=False, template_time=NOON, token_strings=True)
        assert asked == TOKENS and orchestrator.tokenized == CHAT_ASKED
        assert client.detokenize([7, 8]) == "[7, 8] with"
        assert client.detokenize([], skip_special_tokens=True) == "[] without"
        for refused in (b"hi", ["user", "hi"]):
            with pytest.raises(TypeError):
                client.tokenize(refused)


async def test_the_asyncio_client_tokenizes(address: str, orchestrator: Orchestrator) -> None:
    async with AsyncClient(address) as client:
        assert await client.tokenize("", add_special_tokens=False) == TOKENS
        assert orchestrator.tokenized == TEXT_ASKED
        assert await client.tokenize(SAID) == TOKENS
        assert await client.detokenize([7], skip_special_tokens=True) == "[7] without"
