"""Who may connect, with what, and what is told to whom: real servers, real certificates."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from orchestrator.errors import VerifierLostError
from orchestrator.peers.draft_peer import DraftPeer
from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifiers import Verifiers
from orchestrator.rounds.verification import VerifierSide
from orchestrator.speculation.proposal import NOTHING_PROPOSED
from proving.certificates import LONG_AGO, Authority, Issued
from slipstream.cli.local import free_address
from slipstream.rpc import token_check
from slipstream.rpc.channel import open_channel
from slipstream.rpc.connector import Connector
from slipstream.rpc.server import Server
from slipstream.rpc.status import PeerError, error_of_call
from slipstream.transport.certificates import TlsFiles, reloaded_channel_credentials, server_credentials
from slipstream.transport.listening import Listening
from slipstream.transport.tokens import reloaded_bearer
from slipstream.wire.v1 import draft_pb2_grpc, model_pb2, model_pb2_grpc, verifier_pb2_grpc
from tests.contract.test_peers import INFO, RULE, Service
from tests.scripted_peers import new_note

LOOK_SECONDS = 1.05
"""After which changed certificates are looked at again."""


class Model(model_pb2_grpc.ModelServiceServicer):
    """Notes who asks."""

    def __init__(self) -> None:
        self.callers: list[Any] = []

    async def GetLoad(self, request: model_pb2.GetLoadRequest, context: Any) -> model_pb2.GetLoadResponse:
        self.callers.append(context.auth_context().get("x509_common_name"))
        return model_pb2.GetLoadResponse()

    async def GetModelInfo(
        self, request: model_pb2.GetModelInfoRequest, context: Any
    ) -> model_pb2.GetModelInfoResponse:
        raise AssertionError("no request gets here")

    async def GetTokenizer(
        self, request: model_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        yield model_pb2.GetTokenizerResponse()


class Served:
    """A server with a scripted model service."""

    def __init__(self, listening: Listening, address: str = "127.0.0.1:0") -> None:
        self.server = Server(address, (), listening=listening)
        self.model, self.service = Model(), Service()
        model_pb2_grpc.add_ModelServiceServicer_to_server(self.model, self.server.grpc)
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self.service, self.server.grpc)
        draft_pb2_grpc.add_DraftServiceServicer_to_server(self.service, self.server.grpc)
        self.address = f"127.0.0.1:{self.server.bind()}"


@asynccontextmanager
async def serving(listening: Listening, address: str = "127.0.0.1:0") -> AsyncIterator[Served]:
    served = Served(listening, address)
    await served.server.start()
    await served.server.set_serving(True)
    try:
        yield served
    finally:
        await served.server.grpc.stop(0)


def by_tls(own: Issued, client_authority: Authority | None = None) -> Listening:
    files = TlsFiles(
        str(own.certificate), str(own.key), "" if client_authority is None else client_authority.file, "--tls"
    )
    return Listening(server_credentials(files))


def token_in(path: Path) -> Listening:
    return Listening(token=reloaded_bearer("--peer-token-file", str(path)))


async def get_load(channel: grpc.aio.Channel, metadata: Any = None) -> None:
    await model_pb2_grpc.ModelServiceStub(channel).GetLoad(model_pb2.GetLoadRequest(), timeout=30, metadata=metadata)


async def get_health(channel: grpc.aio.Channel) -> None:
    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())  # type: ignore[attr-defined]


async def code_of(call: Awaitable[object]) -> grpc.StatusCode:
    """Return the status with which a call ends."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def answers(address: str, credentials: grpc.ChannelCredentials | None) -> bool:
    """Return whether a new connection is made and a call on it answered."""
    async with open_channel(address, credentials) as channel:
        code = await code_of(get_load(channel))
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    return code is grpc.StatusCode.OK


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 60
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def another(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "another")


async def test_a_server_shows_its_certificate_and_speaks_no_plaintext(ours: Authority, another: Authority) -> None:
    async with serving(by_tls(ours.issue("server"))) as served:
        assert await answers(served.address, ours.trust())
        assert not await answers(served.address, another.trust()), "its authority is not trusted"
        assert not await answers(served.address, None), "plaintext"
    async with serving(by_tls(ours.issue("old", expires=LONG_AGO))) as served:
        assert not await answers(served.address, ours.trust()), "expired"
    async with serving(by_tls(ours.issue("elsewhere", "verifier.example"))) as served:
        assert not await answers(served.address, ours.trust()), "for another name"
        async with open_channel(served.address, ours.trust(), "verifier.example") as channel:
            await get_load(channel)


async def test_with_mutual_tls_clients_show_one_too_and_are_known_by_it(ours: Authority, another: Authority) -> None:
    async with serving(by_tls(another.issue("server"), ours)) as served:
        right = ours.issue("alice", "alice@example.org", common_name="alice")
        refused = [None, another.issue("stranger"), ours.issue("old", expires=LONG_AGO)]
        for shown in refused:
            assert not await answers(served.address, another.trust(shown))
        assert served.model.callers == []
        assert await answers(served.address, another.trust(right))
        assert served.model.callers == [[b"alice"]]


async def test_new_connections_get_a_rotated_certificate_and_old_ones_go_on(
    ours: Authority, another: Authority
) -> None:
    certificate = ours.issue("server")
    async with serving(by_tls(certificate)) as served, open_channel(served.address, ours.trust()) as old:
        await get_load(old)
        certificate.become(another.issue("server"))
        await asyncio.sleep(LOOK_SECONDS)
        assert await answers(served.address, another.trust())
        assert not await answers(served.address, ours.trust())
        await get_load(old)


async def test_new_files_that_cannot_be_used_leave_the_old_ones_and_one_line(
    ours: Authority, another: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = ours.issue("server")
    async with serving(by_tls(certificate)) as served:
        assert await answers(served.address, ours.trust())
        certificate.key.write_bytes(another.issue("other").key.read_bytes())
        await asyncio.sleep(LOOK_SECONDS)
        for _ in range(3):
            assert await answers(served.address, ours.trust())
        await asyncio.sleep(LOOK_SECONDS)
        assert await answers(served.address, ours.trust())
        said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        expected = f"--tls-key {certificate.key} is not the key of --tls-certificate {certificate.certificate}"
        assert said == [f"{expected}; the old value stays in use"]
        certificate.key.unlink()
        await asyncio.sleep(LOOK_SECONDS)
        assert await answers(served.address, ours.trust()), "not there at all"
        certificate.become(another.issue("server"))
        await asyncio.sleep(LOOK_SECONDS)
        assert await answers(served.address, another.trust()), "mended"


async def test_an_orchestrator_shows_its_rotated_certificate_where_it_connects_again(
    ours: Authority, another: Authority
) -> None:
    shown, server_certificate = ours.issue("orchestrator", common_name="first"), ours.issue("server")
    files = TlsFiles(str(shown.certificate), str(shown.key), ours.file, "--peer-tls", "--peer-tls-ca")
    channel, address = Connector(reloaded_channel_credentials(files)), free_address()
    async with serving(by_tls(server_certificate, ours), address) as served, channel.open_peer(address) as reached:
        await get_load(reached)
        shown.become(ours.issue("next", common_name="second"))
        await asyncio.sleep(LOOK_SECONDS)
        await get_load(reached)
        assert served.model.callers == [[b"first"]] * 2, "a connection has its certificate for life"
        await served.server.grpc.stop(0)
        async with serving(by_tls(server_certificate, ours), served.address) as again:

            async def comes_back() -> bool:
                return await code_of(get_load(reached)) is grpc.StatusCode.OK

            await until(comes_back)
            assert again.model.callers == [[b"second"]]


async def test_a_peer_that_is_started_again_at_once_is_noticed_after_a_rotation_too(ours: Authority) -> None:
    shown, server_certificate = ours.issue("orchestrator"), ours.issue("server")
    files = TlsFiles(str(shown.certificate), str(shown.key), ours.file, "--peer-tls", "--peer-tls-ca")
    address = free_address()
    peer = VerifierPeer(address, connector=Connector(reloaded_channel_credentials(files)))
    health = peer._health
    async with asyncio.timeout(60):
        async with serving(by_tls(server_certificate, ours), address):
            await health.wait_until_serving()
            shown.become(ours.issue("next"))
            await asyncio.sleep(LOOK_SECONDS)
            count = health.interruption_count
        for _ in range(3):
            async with serving(by_tls(server_certificate, ours), address):
                await health.wait_until_interrupted(count)
                await health.wait_until_serving()
                count = health.interruption_count
    await peer.close()


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ((), False),
        ((("authorization", "Bearer a-wrong-long-token"),), False),
        ((("authorization", "the-right-long-token"),), False),
        ((("authorization", "Bearer the-right-long-token"), ("authorization", "Bearer a-wrong-long-token")), False),
        ((("authorization", "Bearer the-right-long-token"),), True),
    ],
    ids=["none", "wrong", "without its scheme", "two of them", "right"],
)
async def test_every_method_but_health_asks_for_the_token(
    tmp_path: Path, said: tuple[tuple[str, str], ...], taken: bool
) -> None:
    (tmp_path / "token").write_text("the-right-long-token\n")
    async with serving(token_in(tmp_path / "token")) as served, open_channel(served.address) as channel:
        await get_health(channel)
        admin = channelz_pb2_grpc.ChannelzStub(channel)
        calls = [
            lambda: get_load(channel, said),
            lambda: admin.GetServers(channelz_pb2.GetServersRequest(), metadata=said),
            lambda: anext(aiter(model_pb2_grpc.ModelServiceStub(channel).GetTokenizer(_TOKENIZER, metadata=said))),
        ]
        for call in calls:
            if taken:
                await call()
                continue
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert error_of_call(caught.value).reason == "PEER_UNAUTHENTICATED"
        assert len(served.model.callers) == taken


_TOKENIZER = model_pb2.GetTokenizerRequest()


async def test_a_rotated_token_ends_the_old_one_and_a_lost_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    path.write_text("an-old-long-token")

    async def is_taken(token: str) -> bool:
        code = await code_of(get_load(channel, (("authorization", f"Bearer {token}"),)))
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED)
        return code is grpc.StatusCode.OK

    async with serving(token_in(path)) as served, open_channel(served.address) as channel:
        assert await is_taken("an-old-long-token")
        path.write_text("a-new-long-token")
        assert [await is_taken("an-old-long-token"), await is_taken("a-new-long-token")] == [False, True]
        path.write_text("")
        assert [await is_taken(""), await is_taken("a-new-long-token"), await is_taken("a-new-long-token")] == [
            False,
            True,
            True,
        ]
        (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert said.startswith(f"--peer-token-file {path} has to hold a token: ")


class Turns:
    """Rounds of one session, as the orchestrator has them."""

    def __init__(self, address: str, token: Path) -> None:
        connector = Connector(token=reloaded_bearer("--peer-token-file", str(token)))
        self.peer = VerifierPeer(address, connector=connector)
        self.peer.info = INFO
        self.verifiers = Verifiers([self.peer])
        self.verifiers.admit(self.peer)
        self._sequence = PeerSequence()

    async def round(self, patience: float, sequence: PeerSequence | None = None) -> int:
        side = VerifierSide(self.verifiers, INFO, lease_seconds=60.0, patience_seconds=patience)
        sequence = sequence or self._sequence
        return (await side.verify(sequence, [5, 6, 7], NOTHING_PROPOSED, RULE, None, new_note())).next_token


async def test_a_verifier_that_refuses_the_token_is_named_in_one_line_and_told_to_the_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While sixteen sessions write at once: the stream's own status is then mostly lost."""
    monkeypatch.setattr(token_check, "_SAY_AGAIN_SECONDS", 600.0)  # a busy machine takes long for all this
    caplog.set_level(logging.INFO)
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    theirs.write_text("a-new-long-token")
    own.write_text("an-old-long-token")
    async with serving(token_in(theirs)) as served:
        turns = Turns(served.address, own)
        with pytest.raises(PeerError, match="does not show this service's token"):
            await turns.peer.wait_until_serving()  # any caller may ask for its health
        refusal = f"the verifier at {served.address} refuses this orchestrator's token: --peer-token-file"
        ended = await asyncio.gather(*(turns.round(1.5, PeerSequence()) for _ in range(16)), return_exceptions=True)
        for error in ended:
            assert isinstance(error, VerifierLostError)
            assert refusal in str(error)
        assert served.service.items == []
        assert not turns.peer.reachable
        going_on = asyncio.create_task(turns.round(10))
        await asyncio.sleep(0.2)
        own.write_text("a-new-long-token")
        assert await going_on == RULE.seed
        assert turns.peer.reachable
        said = [record.getMessage() for record in caplog.records if "token" in record.getMessage()]
        server_line = [line for line in said if line.startswith("a call from ")]
        assert len(server_line) == 1, "not one for each attempt"
        taken_again = f"the verifier at {served.address} takes this orchestrator's token again"
        assert [line for line in said if "orchestrator's" in line] == [refusal, taken_again]
        await turns.verifiers.close()


async def test_a_draft_that_refuses_the_token_is_named_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "theirs").write_text("the-right-long-token")
    async with serving(token_in(tmp_path / "theirs")) as served:
        draft = DraftPeer(served.address)
        for _ in range(2):
            with pytest.raises(PeerError, match="does not show this service's token"):
                await draft.wait_until_serving()
        refusal = f"the draft at {served.address} refuses this orchestrator's token: --peer-token-file"

        async def is_known() -> bool:
            return draft.trouble == refusal

        await until(is_known)
        await asyncio.sleep(0.2)
        assert [r.getMessage() for r in caplog.records if "orchestrator's" in r.getMessage()] == [refusal]
        await draft.close()


async def test_what_is_wrong_with_a_certificate_is_said_while_a_peer_is_waited_for(
    ours: Authority, another: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(by_tls(ours.issue("server"))) as served:
        trusted = reloaded_channel_credentials(TlsFiles(authority=another.file))
        draft = DraftPeer(served.address, Connector(trusted))
        waiting = asyncio.create_task(draft.wait_until_serving())
        async with asyncio.timeout(30):
            while "CERTIFICATE_VERIFY_FAILED" not in caplog.text:  # noqa: ASYNC110 - a log tells no event loop
                await asyncio.sleep(0.05)
        assert not waiting.done() and "CERTIFICATE_VERIFY_FAILED" in draft.trouble
        waiting.cancel()
        await draft.close()


async def test_channelz_is_where_only_this_machine_sees_it() -> None:
    async def is_there(address: str) -> bool:
        async with open_channel(address) as channel:
            await get_health(channel)
            listed: Any = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            codes = {
                await code_of(channelz_pb2_grpc.ChannelzStub(channel).GetServers(channelz_pb2.GetServersRequest())),
                await code_of(anext(aiter(listed(iter([b""]))))),
            }
        assert codes in ({grpc.StatusCode.OK}, {grpc.StatusCode.UNIMPLEMENTED}), "both or neither"
        return codes == {grpc.StatusCode.OK}

    async with serving(Listening()) as served:
        assert await is_there(served.address)
    async with serving(Listening(), "0.0.0.0:0") as served:
        assert not await is_there(served.address)
    for address in ("127.0.0.1:0", "0.0.0.0:0"):
        admin = free_address()
        async with serving(Listening(admin_address=admin), address) as served:
            assert not await is_there(served.address)
            assert await is_there(admin)
