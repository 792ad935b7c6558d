"""The commands as a newcomer types them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from slipstream.cli.local import LocalServices, free_address
from slipstream.version import VERSION

SLIPSTREAM = [sys.executable, "-m", "slipstream.cli"]


def left_behind() -> list[str]:
    """Command lines of services that are nobody's: the process that each one names as its parent has ended."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    services = [line for line in lines if "slipstream.cli.child" in line]
    parent = [int(line[line.index("slipstream.cli.child") + 1]) for line in services]
    return [" ".join(line) for line, pid in zip(services, parent, strict=True) if not psutil.pid_exists(pid)]


def wait_until_none_left() -> None:
    deadline = time.monotonic() + 20
    while left_behind():
        assert time.monotonic() < deadline, left_behind()
        time.sleep(0.1)


def test_a_piped_chat_answers_each_line_and_leaves_no_process() -> None:
    ended = subprocess.run(
        [*SLIPSTREAM, "chat", "--local"],
        input="What does os.path.join do?\n\nAnd json.dumps?\n",
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == 4
    assert "Join two or more pathname components" in lines[0]
    assert "Serialize ``obj`` to a JSON formatted ``str``" in lines[2]
    for line in (lines[1], lines[3]):
        for part in ("tokens/s", "first token", "acceptance", "mean acceptance length"):
            assert part in line
    wait_until_none_left()


PAPER = ["--target", "arithmetic:ends=0", "--draft", "arithmetic:ends=0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_however_a_chat_ends_no_process_is_left(number: signal.Signals) -> None:
    command = [*SLIPSTREAM, "chat", "--local", *PAPER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write("hello\n")
        chat.stdin.flush()
        assert chat.stdout.readline()
        chat.send_signal(number)
        assert chat.wait(60) != 0
    wait_until_none_left()


def test_up_serves_on_the_addresses_it_is_told_until_a_signal() -> None:
    addresses = [free_address() for _ in range(3)]
    flags = [
        "--orchestrator-address",
        addresses[0],
        "--verifier-address",
        addresses[1],
        "--draft-address",
        addresses[2],
    ]
    with subprocess.Popen([*SLIPSTREAM, "up", *PAPER, *flags], stderr=subprocess.PIPE, text=True) as up:
        assert up.stderr is not None
        for line in up.stderr:
            if line.startswith("ready"):
                break
        info = subprocess.run(
            [*SLIPSTREAM, "info", "--address", addresses[0]], capture_output=True, text=True, timeout=60
        )
        assert 'name: "arithmetic:ends=0"' in info.stdout
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 130
    wait_until_none_left()


def test_up_on_a_busy_port_says_which(paper: LocalServices) -> None:
    flags = ["--verifier-address", paper.verifier_address, "--orchestrator-address", free_address()]
    ended = subprocess.run([*SLIPSTREAM, "up", *PAPER, *flags], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert f"cannot listen on {paper.verifier_address}" in ended.stderr.replace("\n", " ")
    wait_until_none_left()


def test_without_a_server_the_chat_says_where_it_looked() -> None:
    address = free_address()
    ended = subprocess.run(
        [*SLIPSTREAM, "chat", "--address", address], input="x\n", capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert address in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", [[], ["chat"], ["up"], ["info"]])
def test_help_teaches(command: list[str]) -> None:
    wide = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    shown = subprocess.run([*SLIPSTREAM, *command, "--help"], capture_output=True, text=True, timeout=60, env=wide)
    assert shown.returncode == 0
    assert "Usage" in shown.stdout


def test_a_load_is_reported_as_json_and_what_fails_is_counted(paper: LocalServices) -> None:
    command = [*SLIPSTREAM, "load", "--sessions", "6", "--turns", "2", "--max-tokens", "20", "--json", "--address"]
    ended = subprocess.run([*command, paper.orchestrator_address], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["turn_count"], report["token_count"], report["failures"]) == (12, 240, {})
    assert 0 < report["inter_token"]["p50"] <= report["inter_token"]["p99"] <= report["turn"]["p99"]
    rated = [*SLIPSTREAM, "load", "--rate", "200", "--sessions", "4", "--max-tokens", "5", "--address"]
    table = subprocess.run([*rated, paper.orchestrator_address], capture_output=True, text=True, timeout=60)
    assert "8 turns, 40 tokens" in table.stdout and "between tokens" in table.stdout
    nobody = subprocess.run([*command, free_address()], capture_output=True, text=True, timeout=60)
    assert nobody.returncode == 1
    assert "6 chats failed: UNAVAILABLE" in nobody.stderr and "Traceback" not in nobody.stderr


def test_the_version_is_in_one_place() -> None:
    assert (
        subprocess.run([*SLIPSTREAM, "version"], capture_output=True, text=True, timeout=60).stdout.strip() == VERSION
    )


BUF = shutil.which("buf", path=str(Path(sys.executable).parent))


def buf_curl(address: str, *arguments: str) -> str:
    assert BUF is not None
    command = [BUF, "curl", "--protocol", "grpc", "--http2-prior-knowledge", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_buf_curl_lists_and_calls_every_service_without_proto_files(paper: LocalServices) -> None:
    owners = {
        paper.orchestrator_address: {"slipstream.v1.OrchestratorService"},
        paper.verifier_address: {"slipstream.wire.v1.ModelService", "slipstream.wire.v1.VerifierService"},
        paper.draft_address: {"slipstream.wire.v1.ModelService", "slipstream.wire.v1.DraftService"},
    }
    for address, own in owners.items():
        listed = set(buf_curl(address, "--list-services", f"http://{address}").split())
        assert own <= listed
        assert {"grpc.health.v1.Health", "grpc.channelz.v1.Channelz"} <= listed
        health = buf_curl(address, "--data", "{}", f"http://{address}/grpc.health.v1.Health/Check")
        assert json.loads(health) == {"status": "SERVING"}
        channels = buf_curl(address, "--data", "{}", f"http://{address}/grpc.channelz.v1.Channelz/GetServers")
        assert json.loads(channels)["server"]
    url = f"http://{paper.orchestrator_address}/slipstream.v1.OrchestratorService/Generate"
    data = '{"text": "hello", "settings": {"maxTokenCount": 4}}'
    events = buf_curl(paper.orchestrator_address, "--data", data, url)
    assert '"finishReason": "FINISH_REASON_MAX_TOKENS"' in events.replace('":"', '": "')
    model = buf_curl(
        paper.draft_address,
        "--data",
        "{}",
        f"http://{paper.draft_address}/slipstream.wire.v1.ModelService/GetModelInfo",
    )
    assert json.loads(model)["model"]["contextLength"] == 8192
