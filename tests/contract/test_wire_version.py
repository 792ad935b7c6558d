"""Services of other wire versions refuse each other by name, where they connect and where a handle is opened."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from orchestrator.peers.checking.faults import PeerFaultError
from orchestrator.peers.draft_peer import DraftPeer
from orchestrator.peers.exchange import Terms
from orchestrator.peers.model_peer import ModelPeer
from orchestrator.peers.verifier_peer import VerifierPeer
from slipstream.errors import WireVersionError
from slipstream.hosting.handles import PeerHandles
from slipstream.hosting.model_service import ModelService
from slipstream.hosting.rules import RuleBook
from slipstream.rpc.channel import SERVER_OPTIONS
from slipstream.rpc.status import error_of_call
from slipstream.rpc.wire import WIRE_VERSION
from slipstream.wire.v1 import draft_pb2, model_pb2, model_pb2_grpc
from tests.scripted_peers import right_info

NEWER = WIRE_VERSION + 1


class Health(health_pb2_grpc.HealthServicer):
    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


class Service(model_pb2_grpc.ModelServiceServicer):
    """Says that it speaks some version, or refuses as ModelService does."""

    def __init__(self) -> None:
        self.info = right_info()
        self.asked: list[int] = []

    async def GetLoad(self, request: model_pb2.GetLoadRequest, context: Any) -> model_pb2.GetLoadResponse:
        return model_pb2.GetLoadResponse()

    async def GetTokenizer(
        self, request: model_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        yield model_pb2.GetTokenizerResponse()

    async def GetModelInfo(
        self, request: model_pb2.GetModelInfoRequest, context: Any
    ) -> model_pb2.GetModelInfoResponse:
        self.asked.append(request.wire_version)
        return await ModelService.GetModelInfo(cast(ModelService, self), request, context)


@pytest.fixture
async def service() -> AsyncIterator[tuple[Service, str]]:
    service, server = Service(), grpc.aio.server(options=SERVER_OPTIONS)
    model_pb2_grpc.add_ModelServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield service, f"127.0.0.1:{port}"
    await server.stop(0)


@pytest.mark.parametrize("kind", [DraftPeer, VerifierPeer])
@pytest.mark.parametrize("version", [0, NEWER])
async def test_an_orchestrator_refuses_a_service_of_another_wire_version(
    service: tuple[Service, str], kind: type[DraftPeer | VerifierPeer], version: int, caplog: pytest.LogCaptureFixture
) -> None:
    hosting, address = service
    peer: ModelPeer[Any, Any] = kind(address)
    hosting.info.wire_version = version
    with pytest.raises(PeerFaultError, match="wire_version must be"):
        await peer.wait_until_serving()
    assert not peer.reachable and peer.faults.counts == {"wire_version": 1}
    (line,) = [each for each in caplog.messages if "wire_version" in each]
    assert address in line and "upgrade the older one" in line
    hosting.info.wire_version = WIRE_VERSION  # it has been replaced
    await peer.wait_until_serving()
    assert peer.reachable and hosting.asked == [WIRE_VERSION] * 2
    await peer.close()


@pytest.mark.parametrize("version", [0, NEWER])
async def test_a_service_refuses_an_orchestrator_of_another_wire_version(
    service: tuple[Service, str], version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with grpc.aio.insecure_channel(service[1]) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetModelInfo(model_pb2.GetModelInfoRequest(wire_version=version))
    assert error_of_call(caught.value).reason == "WIRE_VERSION_MISMATCH"
    assert any("an orchestrator at" in line and "upgrade the older one" in line for line in caplog.messages)


def test_a_handle_is_not_opened_for_another_wire_version() -> None:
    host = SimpleNamespace(engine=SimpleNamespace(context_length=100), open=None)
    handles = PeerHandles("peer", cast(Any, host), right_info(), RuleBook())
    terms = Terms("t", "w", 60.0).message()
    assert terms.wire_version == WIRE_VERSION
    terms.wire_version = NEWER
    with pytest.raises(WireVersionError, match=f"wire version {NEWER}"):
        handles.begin(draft_pb2.ProposeItem(handle="a" * 32, open=terms, tail=[1]))
