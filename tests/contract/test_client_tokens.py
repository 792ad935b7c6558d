"""What clients and commands say of who they are, on every call."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from slipstream.cli.__main__ import app
from slipstream.client import PeerError
from tests.either_client import KINDS, connected


class Listener(grpc.GenericRpcHandler):
    """Notes what is said, and knows no method."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        metadata: Any = handler_call_details.invocation_metadata
        self.said.append([value for key, value in metadata if key == "authorization"])


@pytest.fixture
def listening() -> Iterator[tuple[Listener, str]]:
    listener = Listener()
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=(listener,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield listener, f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_says_its_token_with_every_call(kind: str, listening: tuple[Listener, str]) -> None:
    listener, address = listening
    with connected(kind, address, token="of-alice", metadata=[("trace", "x")]) as client:
        for call in (client.server_info, client.status, lambda: client.generate("hello").wait()):
            with pytest.raises(PeerError):
                call()
    assert listener.said and all(said == ["Bearer of-alice"] for said in listener.said)


@pytest.mark.parametrize(
    "command",
    [
        ["chat"],
        ["info"],
        ["export", "1d981035cf069313"],
        ["top", "--once"],
        ["trace", "1d981035cf069313"],
        ["bench", "--requests", "1"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_says_its_token(
    command: list[str], listening: tuple[Listener, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, address = listening
    (tmp_path / "token").write_text("from-a-file\n")
    CliRunner().invoke(app, [*command, "--address", address, "--token-file", str(tmp_path / "token")], input="hi\n")
    monkeypatch.setenv("SLIPSTREAM_TOKEN", "from-the-environment")
    CliRunner().invoke(app, [*command, "--address", address], input="hi\n")
    count = len(listener.said) // 2
    assert listener.said == [["Bearer from-a-file"]] * count + [["Bearer from-the-environment"]] * count
    assert count
