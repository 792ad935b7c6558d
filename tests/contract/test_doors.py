"""Before a caller is known: what one connection can make a service do. Real servers, raw HTTP/2."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from orchestrator.access.access import Access
from orchestrator.access.authentication import AuthenticationInterceptor
from proving.hostile.http2 import NEWEST, RawConnection, grpc_message, literal
from slipstream.bearer_tokens import make_token
from slipstream.rpc.channel import MAX_METADATA_BYTES, MOST_STREAMS, open_channel
from slipstream.rpc.error_reports import ReportsErrors
from slipstream.rpc.server import Server

METHOD = "/test.Doors/Ask"
CONVERSE = "/test.Doors/Converse"
BOMBS = {"gzip": gzip.compress(bytes(15 * 2**20)), "deflate": zlib.compress(bytes(15 * 2**20))}
WAITING = 2 * MOST_STREAMS + 10
OK, EXHAUSTED, UNIMPLEMENTED, UNAUTHENTICATED = "0", "8", "12", "16"


class Doors:
    """A server that notes how large the messages are that it parses."""

    def __init__(self, *interceptors: grpc.aio.ServerInterceptor) -> None:
        self.server = Server("127.0.0.1:0", (), interceptors=interceptors)
        self.parsed: list[int] = []
        self.go_on, self.all_wait = asyncio.Event(), asyncio.Event()
        self._waiting = 0
        handlers: dict[str, Any] = {
            "Ask": grpc.unary_unary_rpc_method_handler(self._ask, self._parse),
            "Converse": grpc.stream_stream_rpc_method_handler(self._converse, self._parse),
            "Tell": grpc.unary_stream_rpc_method_handler(self._tell, self._parse),
            "Wait": grpc.unary_unary_rpc_method_handler(self._wait, self._parse),
        }
        self.server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Doors", handlers),))
        self.address = f"127.0.0.1:{self.server.bind()}"

    def _parse(self, data: bytes) -> bytes:
        self.parsed.append(len(data))
        return data

    async def _ask(self, request: bytes, context: Any) -> bytes:
        return b"answer"

    async def _converse(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def _tell(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Endlessly, or once and then nothing for long."""
        while True:
            yield b"told"
            await asyncio.sleep(600 if request == b"once" else 0.01)

    async def _wait(self, request: bytes, context: Any) -> bytes:
        self._waiting += 1
        if self._waiting == WAITING:
            self.all_wait.set()
        await self.go_on.wait()
        return b"answer"


@asynccontextmanager
async def serving(*interceptors: grpc.aio.ServerInterceptor) -> AsyncIterator[Doors]:
    doors = Doors(*interceptors)
    await doors.server.start()
    try:
        yield doors
    finally:
        doors.go_on.set()
        await doors.server.grpc.stop(0)


def outcome(address: str, method: str, message: bytes, *fields: tuple[str, str], block: bytes = b"") -> dict[str, str]:
    """What a call on a connection of its own ends with."""
    with RawConnection(address) as connection:
        connection.meet()
        stream = connection.open(method, *fields, block=block)
        connection.say(stream, message)
        return connection.outcome(stream)


@pytest.mark.parametrize("method", [METHOD, CONVERSE])
@pytest.mark.parametrize("encoding", BOMBS)
async def test_a_compressed_request_is_refused_and_not_inflated(method: str, encoding: str) -> None:
    async with serving() as doors:
        message = grpc_message(BOMBS[encoding], compressed=True)
        found = await asyncio.to_thread(outcome, doors.address, method, message, ("grpc-encoding", encoding))
        assert found["grpc-status"] == UNIMPLEMENTED, found
        assert encoding in found["grpc-message"]
        assert not doors.parsed
        found = await asyncio.to_thread(outcome, doors.address, METHOD, grpc_message(b"plain"))
        assert found["grpc-status"] == OK
        assert found["grpc-accept-encoding"] == "identity"


async def test_a_compressed_answer_is_not_inflated() -> None:
    async def ask(request: bytes, context: Any) -> bytes:
        return bytes(15 * 2**20)

    server = grpc.aio.server(compression=grpc.Compression.Gzip)
    handlers: dict[str, Any] = {"Ask": grpc.unary_unary_rpc_method_handler(ask)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Doors", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            assert len(await channel.unary_unary(METHOD)(b"")) < 2**15
    finally:
        await server.stop(0)


@pytest.mark.parametrize("acknowledged", [True, False])
@pytest.mark.parametrize("method", [METHOD, "/grpc.health.v1.Health/Check"])
async def test_header_fields_larger_than_the_limit_are_refused(acknowledged: bool, method: str) -> None:
    def ask(block: bytes) -> dict[str, str]:
        with RawConnection(doors.address) as connection:
            if acknowledged:
                connection.meet()
            stream = connection.open(method, block=block)
            connection.say(stream, grpc_message(b""))
            return connection.outcome(stream)

    async with serving() as doors:
        bomb = literal("x", "a" * 3900, kept=True) + NEWEST * 200
        found = await asyncio.to_thread(ask, bomb)
        assert found["grpc-status"] == EXHAUSTED, found
        # With many small fields too: each takes memory of its own.
        found = await asyncio.to_thread(ask, literal("x", "", kept=True) + NEWEST * 10_000)
        assert found["grpc-status"] == EXHAUSTED, found
        assert not doors.parsed
        # What a large token takes is below the limit.
        found = await asyncio.to_thread(ask, literal("authorization", "a" * (MAX_METADATA_BYTES // 2)))
        assert found["grpc-status"] != EXHAUSTED, found


async def test_a_client_that_does_not_acknowledge_settings_is_cut_off() -> None:
    def wait() -> float:
        with RawConnection(doors.address, timeout=60) as connection:
            connection.open(METHOD)
            return connection.seconds_until_closed()

    async with serving() as doors:
        assert await asyncio.to_thread(wait) < 60


async def test_a_connection_has_a_limited_number_of_calls_at_once() -> None:
    def ask() -> dict[str, str]:
        with RawConnection(doors.address) as connection:
            connection.meet()
            connection.open_many(CONVERSE, MOST_STREAMS)
            return connection.outcome(connection.open(CONVERSE))

    async with serving() as doors:
        assert "reset" in await asyncio.to_thread(ask)


async def test_a_channel_of_ours_takes_more_connections_where_one_has_too_many_calls() -> None:
    async with serving() as doors, open_channel(doors.address) as channel:
        call: Any = channel.unary_unary("/test.Doors/Wait")
        calls = [asyncio.ensure_future(_answer(call)) for _ in range(WAITING)]
        await doors.all_wait.wait()
        doors.go_on.set()
        assert await asyncio.gather(*calls) == [b"answer"] * len(calls)


async def _answer(call: Any) -> bytes:
    return bytes(await call(b"x"))


MADE = {name: make_token() for name in ("alice", "operator")}
TOKENS = {name: token for name, (token, _) in MADE.items()}


def write_access_file(path: Path, *names: str) -> None:
    lines = []
    for name in names:
        _, kept = MADE[name]
        lines += ["[[principals]]", f'name = "{name}"', f"operator = {str(name == 'operator').lower()}"]
        lines += [f'tokens = [{{ id = "{kept.id}", salt = "{kept.salt}", sha256 = "{kept.sha256}" }}]']
    path.write_text("\n".join(lines))
    path.chmod(0o600)


@pytest.fixture
def access(tmp_path: Path) -> Access:
    """Two principals, by a file beside."""
    write_access_file(tmp_path / "access.toml", *MADE)
    return Access(tmp_path / "access.toml")


@pytest.mark.parametrize("method", [METHOD, CONVERSE])
async def test_a_call_without_a_token_is_refused_before_its_message_is_parsed(access: Access, method: str) -> None:
    async with serving(AuthenticationInterceptor().guard(access)) as doors:
        large = grpc_message(bytes(2**20))
        for fields in ((), (("authorization", "Bearer wrong.token"),), (("authorization", "Basic x"),)):
            found = await asyncio.to_thread(outcome, doors.address, method, large, *fields)
            assert found["grpc-status"] == UNAUTHENTICATED, found
        assert not doors.parsed
        shown = ("authorization", f"Bearer {TOKENS['alice']}")
        found = await asyncio.to_thread(outcome, doors.address, method, large, shown)
        assert found["grpc-status"] == OK
        assert doors.parsed == [2**20]


async def test_a_call_that_is_refused_at_the_door_is_counted_by_its_method(access: Access) -> None:
    counted: list[tuple[str, str]] = []
    telling = ReportsErrors("test.Doors", ["Ask"], lambda method, error: counted.append((method, type(error).__name__)))
    async with serving(telling, AuthenticationInterceptor().guard(access)) as doors:
        for method in (METHOD, "/test.Doors/Made-up", "/test.Other/Ask"):
            found = await asyncio.to_thread(outcome, doors.address, method, grpc_message(b""))
            assert found["grpc-status"] == UNAUTHENTICATED
    assert counted == [("Ask", "UnauthenticatedError")], "names that a caller makes up are not counted"


async def test_a_call_that_waits_for_its_first_message_needs_a_token_too(access: Access) -> None:
    def wait() -> dict[str, str]:
        with RawConnection(doors.address) as connection:
            return connection.outcome(connection.open(CONVERSE))

    async with serving(AuthenticationInterceptor().guard(access)) as doors:
        assert (await asyncio.to_thread(wait))["grpc-status"] == UNAUTHENTICATED


async def test_channelz_answers_operators_alone_and_reflection_principals(access: Access) -> None:
    async def ask(name: str | None) -> list[grpc.StatusCode]:
        said = () if name is None else (("authorization", f"Bearer {TOKENS[name]}"),)
        info = reflection_pb2.ServerReflectionRequest(list_services="")
        reflecting: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        looking: Any = channelz_pb2_grpc.ChannelzStub(channel).GetServers
        calls = (
            partial(looking, channelz_pb2.GetServersRequest(), metadata=said),
            reflecting(iter([info]), metadata=said).read,
        )
        return [await _code(call) for call in calls]

    ok, denied, unknown = (
        grpc.StatusCode.OK,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    )
    async with serving(AuthenticationInterceptor().guard(access)) as doors, open_channel(doors.address) as channel:
        assert await ask(None) == [unknown, unknown]
        assert await ask("alice") == [denied, ok]
        assert await ask("operator") == [ok, ok]


async def _read_all(call: Any) -> None:
    while await call.read() != grpc.aio.EOF:
        pass


async def _code(call: Any) -> grpc.StatusCode:
    try:
        await call()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("request_", [b"once", b"endlessly"])
async def test_a_stream_ends_when_its_token_is_withdrawn(tmp_path: Path, access: Access, request_: bytes) -> None:
    said = (("authorization", f"Bearer {TOKENS['alice']}"),)
    async with serving(AuthenticationInterceptor().guard(access)) as doors, open_channel(doors.address) as channel:
        tell: Any = channel.unary_stream("/test.Doors/Tell")
        call = tell(request_, metadata=said)
        assert await call.read() == b"told"
        write_access_file(tmp_path / "access.toml", "operator")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _read_all(call)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_a_stream_goes_on_while_its_token_counts(tmp_path: Path, access: Access) -> None:
    said = (("authorization", f"Bearer {TOKENS['alice']}"),)
    async with serving(AuthenticationInterceptor().guard(access)) as doors, open_channel(doors.address) as channel:
        tell: Any = channel.unary_stream("/test.Doors/Tell")
        call = tell(b"endlessly", metadata=said)
        write_access_file(tmp_path / "access.toml", "alice")
        for _ in range(300):
            assert await call.read() == b"told"
        call.cancel()


async def test_a_stream_that_tells_errors_in_responses_ends_with_one(tmp_path: Path, access: Access) -> None:
    said = (("authorization", f"Bearer {TOKENS['alice']}"),)
    door = AuthenticationInterceptor({CONVERSE: lambda error: error.reason.encode()}).guard(access)
    async with serving(door) as doors, open_channel(doors.address) as channel:
        converse: Any = channel.stream_stream(CONVERSE)
        call = converse(metadata=said)
        await call.write(b"hello")
        assert await call.read() == b"hello"
        write_access_file(tmp_path / "access.toml", "operator")
        assert await call.read() == b"UNAUTHENTICATED"
        assert await call.read() == grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
