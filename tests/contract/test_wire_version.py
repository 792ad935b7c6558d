"""Services of other wire versions refuse each other by name, where they connect and where a handle
is opened."""

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
from slipstream.agreed import WIRE_VERSION
from slipstream.errors import WireVersionError
from slipstream.hosting.handles import PeerHandles
from slipstream.hosting.model_service import ModelService
from slipstream.hosting.refused_versions import RefusedVersions
from slipstream.hosting.rules import RuleBook
from slipstream.rpc.channel import SERVER_OPTIONS
from slipstream.rpc.status import error_of_call
from slipstream.wire.v1 import draft_pb2, model_pb2, model_pb2_grpc
from tests.clock import Clock
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
        self.refused_versions = RefusedVersions()

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
    assert "wire_version must be" in peer.trouble
    hosting.info.wire_version = WIRE_VERSION  # it has been replaced
    await peer.wait_until_serving()
    assert peer.reachable and not peer.trouble and hosting.asked == [WIRE_VERSION] * 2
    await peer.close()


async def test_a_service_answers_a_caller_that_says_no_wire_version(service: tuple[Service, str]) -> None:
    async with grpc.aio.insecure_channel(service[1]) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        answer = await stub.GetModelInfo(model_pb2.GetModelInfoRequest())
    assert answer.model.wire_version == WIRE_VERSION


@pytest.mark.parametrize("version", [NEWER])
async def test_a_service_refuses_an_orchestrator_of_another_wire_version(
    service: tuple[Service, str], version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with grpc.aio.insecure_channel(service[1]) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        for _ in range(3):  # an orchestrator asks again every second
            with caplog.at_level(logging.INFO), pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetModelInfo(model_pb2.GetModelInfoRequest(wire_version=version))
            assert error_of_call(caught.value).reason == "WIRE_VERSION_MISMATCH"
    (record,) = [each for each in caplog.records if "is refused" in each.message]
    assert record.levelno == logging.WARNING
    assert "a caller at ipv4:127.0.0.1:" in record.message and "upgrade the older one" in record.message


def test_a_refused_caller_is_told_once_in_ten_minutes_by_host_and_version(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refused = RefusedVersions(clock)

    def lines(*callers: tuple[str, int]) -> int:
        caplog.clear()
        for peer, version in callers:
            refused.log_once(peer, version, WireVersionError(version, WIRE_VERSION))
        return len(caplog.records)

    callers = [("ipv4:10.0.0.1:5000", 7), ("ipv4:10.0.0.2:5000", 7), ("ipv6:[::1]:5000", 7), ("ipv4:10.0.0.1:5001", 8)]
    assert lines(*callers) == 4
    assert lines(*callers, ("ipv4:10.0.0.1:6000", 7), ("ipv6:[::1]:6000", 7)) == 0
    clock.now += 601
    assert lines(*callers) == 4


def test_a_caller_of_ever_new_versions_fills_neither_log_nor_memory(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refused = RefusedVersions(clock)
    for version in range(10, 3000):
        refused.log_once("ipv4:10.0.0.1:5000", version, WireVersionError(version, WIRE_VERSION))
    assert len(refused._told) == len(caplog.records) == 256
    clock.now += 601
    refused.log_once("ipv4:10.0.0.2:5000", 7, WireVersionError(7, WIRE_VERSION))
    assert len(refused._told) == 1 and "10.0.0.2" in caplog.messages[-1]


def test_a_handle_is_not_opened_for_another_wire_version() -> None:
    host = SimpleNamespace(served=SimpleNamespace(context_length=100), open=None)
    handles = PeerHandles("peer", cast(Any, host), right_info(), RuleBook())
    terms = Terms("t", "w", 60.0).message()
    assert terms.wire_version == WIRE_VERSION
    terms.wire_version = NEWER
    with pytest.raises(WireVersionError, match=f"wire version {NEWER}"):
        handles.resolve(draft_pb2.ProposeItem(handle="a" * 32, open=terms, tail=[1]))
