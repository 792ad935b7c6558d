"""Commands where standard streams are not UTF-8: no line is garbled, and what cannot be shown is
replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slipstream.cli.local import LocalServices
from slipstream.client import Client
from slipstream.v1 import turn_pb2
from tests.fake_orchestrator import FakeOrchestrator, serving

SLIPSTREAM = [sys.executable, "-P", "-m", "slipstream.cli"]
ENCODINGS: dict[str, dict[str, str]] = {
    "utf-8": {"PYTHONIOENCODING": "utf-8"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "c-locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "lang-c": {"LC_ALL": "C"},
}
ANSWER = "Grüße, 你好 \u2713"


def run(*command: str | bytes, text: bytes | None = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIO"))}
    return subprocess.run(
        [*SLIPSTREAM, *command],
        input=text,
        capture_output=True,
        timeout=120,
        env={**known, "COLUMNS": "200", "NO_COLOR": "1", **environment},
    )


def says_unicode(event: turn_pb2.TurnEvent, index: int) -> turn_pb2.TurnEvent:
    """The first delta's text is `ANSWER`."""
    if index == 1:
        event.delta.text = ANSWER
    return event


@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_a_chat_asks_and_answers_in_any_encoding(encoding: str) -> None:
    fake = FakeOrchestrator(breakings=[says_unicode])
    with serving(fake) as address:
        text = "Grüße\n".encode("latin-1" if encoding == "latin-1" else "utf-8")
        ended = run("chat", "--address", address, text=text, **ENCODINGS[encoding])
    assert ended.returncode == 0, ended.stderr.decode()
    assert [request.content for request in fake.asked] == ["Grüße"]
    assert b"Traceback" not in ended.stderr
    if encoding in ("utf-8", "lang-c"):
        assert ANSWER.encode() in ended.stdout
    else:
        assert b"Gr" in ended.stdout and b"?" in ended.stdout, ended.stdout


@pytest.mark.parametrize("encoding", ["ascii", "c-locale", "lang-c"])
def test_a_line_that_is_no_text_is_refused_in_one_line(encoding: str) -> None:
    fake = FakeOrchestrator()
    with serving(fake) as address:
        ended = run("chat", "--address", address, text=b"one\ntw\xffo\nthree\n", **ENCODINGS[encoding])
    assert ended.returncode == 1
    assert [request.content for request in fake.asked] == ["one"]
    assert ended.stderr.decode("ascii").splitlines() == [
        "slipstream: line 2 of standard input is not UTF-8: byte 0xff at position 3; nothing from there on is sent"
    ]


@pytest.mark.parametrize(
    "command", [["chat", "--system", b"a\xff"], ["chat", "--session", b"\xff"], ["export", b"\xff"], ["trace", b"\xff"]]
)
def test_an_argument_that_is_no_text_is_refused_in_one_line(command: list[str | bytes]) -> None:
    with serving(FakeOrchestrator()) as address:
        ended = run(*command, "--address", address, text=b"x\n")
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(b"slipstream: ") and b"is not UTF-8" in line


def test_a_chat_without_standard_input_ends() -> None:
    with serving(FakeOrchestrator()) as address:
        command = " ".join([*SLIPSTREAM, "chat", "--address", address])
        ended = subprocess.run(["sh", "-c", f"exec {command} <&-"], capture_output=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("encoding", ["latin-1", "c-locale"])
def test_what_is_exported_is_the_same_json_in_any_encoding(paper: LocalServices, encoding: str) -> None:
    with Client(paper.orchestrator_address) as client:
        chat = client.chat(system=ANSWER)
        ended = run("export", chat.session_id, "--address", paper.orchestrator_address, **ENCODINGS[encoding])
        assert ended.returncode == 0, ended.stderr.decode()
        assert json.loads(ended.stdout.decode())["system"] == ANSWER
        client.delete_session(chat.session_id)


@pytest.mark.parametrize("encoding", ["latin-1", "c-locale"])
def test_a_tokens_entry_is_toml_in_any_encoding(encoding: str) -> None:
    ended = run("token", "Jos\u00e9 \U0001f600".encode(), **ENCODINGS[encoding])
    assert ended.returncode == 0, ended.stderr.decode()
    assert tomllib.loads(ended.stdout.decode())["principals"][0]["name"] == "Jos\u00e9 \U0001f600"


@pytest.mark.parametrize("encoding", ["latin-1"])
def test_screens_are_shown_in_any_encoding(paper: LocalServices, encoding: str, tmp_path: Path) -> None:
    with Client(paper.orchestrator_address) as client:
        chat = client.chat()
        chat.send("hello").wait()
        at = ["--address", paper.orchestrator_address]
        for command in (
            ["info"],
            ["top", "--once", "--interval", "0.1"],
            ["trace", chat.session_id],
            ["trace", chat.session_id, "--html", str(tmp_path / "turn.html")],
            ["bench", "--requests", "1", "--max-tokens", "2"],
        ):
            ended = run(*command, *at, **ENCODINGS[encoding])
            assert ended.returncode == 0, ended.stderr.decode()
            assert b"Traceback" not in ended.stderr
