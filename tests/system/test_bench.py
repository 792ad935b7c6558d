"""`slipstream bench` as a process of its own, against real services and against servers that
answer badly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.local import LocalServices, free_address
from slipstream.client import Client
from tests.gateway_process import GatewayProcess, gateway_process
from tests.scripted_http import TOKENS, ScriptedHttp, Way

BENCH = [sys.executable, "-m", "slipstream.cli", "bench"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BENCH, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **environment},
    )


def reports(*arguments: str, **environment: str) -> dict[str, Any]:
    ended = run("--json", *arguments, **environment)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert isinstance(found, dict)
    return found


def sessions_of(services: LocalServices) -> int:
    with Client(services.orchestrator_address) as client:
        return len(list(client.list_sessions()))


@pytest.fixture(scope="module")
def gateway(paper: LocalServices) -> Iterator[GatewayProcess]:
    with gateway_process(paper.orchestrator_address) as running:
        yield running


@pytest.fixture
def scripted() -> Iterator[ScriptedHttp]:
    with ScriptedHttp().serving() as server:
        yield server


@pytest.mark.essential
def test_both_kinds_of_address_are_measured_alike(paper: LocalServices, gateway: GatewayProcess) -> None:
    flags = ["--requests", "6", "--concurrency", "3", "--prompt-tokens", "24", "--max-tokens", "20", "--rounds", "2"]
    flags += ["--draft-length", "4"]
    found = reports(f"http://{gateway.address}/v1", paper.orchestrator_address, *flags, "ttft:60000", "e2el:60000")
    assert found["load"]["prompt_lengths"] == "exact"
    for server in found["servers"]:
        assert server["requests"] == {"completed": 12, "failed": 0} and server["errors"] == {}
        assert server["output_tokens"] == 240 and server["token_counts"] == "exact"
        assert 0 < server["ttft_ms"]["p50"] <= server["ttft_ms"]["p99"] <= server["e2el_ms"]["p99"]
        assert server["goodput"]["requests"] == 12
        assert len(server["rounds"]) == 2
    by_http, by_grpc = found["servers"]
    assert by_http["prompt_tokens"] == by_grpc["prompt_tokens"]
    for server in (by_http, by_grpc):
        assert server["acceptance"]["source"] == "answers" and 0 < server["acceptance"]["rate"] < 1
    assert set(found["ratios"]) >= {"output_throughput", "ttft_p50", "e2el_p99"}


def test_completions_of_a_fixed_length_are_asked_of_both(paper: LocalServices, gateway: GatewayProcess) -> None:
    flags = ["--api", "completions", "--requests", "3", "--max-tokens", "9", "--ignore-eos", "--temperature", "0"]
    for address in (paper.orchestrator_address, f"http://{gateway.address}/v1"):
        (server,) = reports(address, *flags, "--draft-length", "0")["servers"]
        assert server["output_tokens"] == 27
        assert server["prompt_tokens"] == 3 * 128, "no template, and this tokenizer adds nothing"


def test_sessions_are_deleted_also_where_a_load_is_interrupted_or_refused(paper: LocalServices) -> None:
    before = sessions_of(paper)
    flags = ["--requests", "6", "--turns", "2", "--max-tokens", "20"]
    (server,) = reports(paper.orchestrator_address, *flags)["servers"]
    assert server["requests"]["completed"] == 12
    assert sessions_of(paper) == before
    refused = run(paper.orchestrator_address, *flags, "--draft-length", "9999")
    assert refused.returncode == 1
    assert "6 requests failed: INVALID_FIELDS" in refused.stderr and "Traceback" not in refused.stderr
    assert sessions_of(paper) == before
    lasting = ["--max-tokens", "8000", "--draft-length", "0", "--turns", "50", "--requests", "6", "--warm-up", "0"]
    with subprocess.Popen(
        [*BENCH, paper.orchestrator_address, *lasting], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        while sessions_of(paper) < before + 6:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        running.wait()
    assert sessions_of(paper) == before


def test_a_rate_a_duration_and_a_file_are_taken(paper: LocalServices, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    file.write_text(f'{json.dumps({"messages": said, "max_tokens": 5})}\n{{"prompt": "d", "max_tokens": 3}}\n')
    flags = ["--prompts", str(file), "--rate", "20", "--arrivals", "constant", "--duration", "0.5"]
    found = reports(paper.orchestrator_address, *flags)
    (server,) = found["servers"]
    assert server["requests"] == {"completed": 10, "failed": 0} and server["output_tokens"] == 40
    assert found["load"]["repeated_prompts"]
    shown = run(paper.orchestrator_address, *flags)
    assert "10 answers, 40 tokens" in shown.stdout and "TTFT" in shown.stdout and "end to end" in shown.stdout
    assert "prompts were sent more than once" in shown.stderr


def test_an_answer_is_read_as_the_server_tells_it(scripted: ScriptedHttp) -> None:
    (server,) = reports(scripted.url, "--requests", "4", "--warm-up", "0", OPENAI_API_KEY="of-alice")["servers"]
    assert (server["model"], server["output_tokens"], server["prompt_tokens"]) == ("scripted", 24, 44)
    assert server["tokens_per_chunk"] == 2.0, "the chunk that names the role has no token"
    assert server["acceptance"]["rate"] == 0.5 and server["acceptance"]["mean_length"] == 3.0
    assert set(scripted.tokens) == {"Bearer of-alice"}
    assert {body["model"] for body in scripted.requests} == {"scripted"}
    assert len({body["messages"][0]["content"] for body in scripted.requests}) == 4


def test_a_server_that_counts_no_tokens_is_told(scripted: ScriptedHttp) -> None:
    scripted.way = "without usage"
    ended = run(scripted.url, "--requests", "2", "--json")
    (server,) = json.loads(ended.stdout)["servers"]
    assert server["token_counts"] == "approximate" and server["output_tokens"] == 2 * len(TOKENS)
    assert "each chunk counts as one" in ended.stderr and "prompts have about the length asked for" in ended.stderr


@pytest.mark.parametrize(
    ("way", "flags", "kind"),
    [
        ("refuses", [], "HTTP 429 rate_limit_error"),
        ("breaks off", [], "connection lost"),
        ("fails in the stream", [], "in the stream: VERIFIER_LOST"),
        ("waits", ["--timeout", "0.5"], "timed out"),
    ],
)
def test_failures_are_counted_by_their_kind(way: Way, flags: list[str], kind: str, scripted: ScriptedHttp) -> None:
    scripted.way = way
    ended = run(scripted.url, "--requests", "3", "--json", "--warm-up", "0", *flags)
    assert ended.returncode == 1 and "no request was answered" in ended.stderr
    (server,) = json.loads(ended.stdout)["servers"]
    assert server["errors"] == {kind: 3} and server["requests"] == {"completed": 0, "failed": 3}
    assert (server["longest_retry_after_s"] is not None) == (way == "refuses")
    assert "Traceback" not in ended.stderr


def test_a_server_that_is_not_there_is_one_line() -> None:
    address = free_address()
    for named in (address, f"http://{address}/v1", f"https://{address}/v1"):
        ended = run(named)
        assert ended.returncode == 1 and ended.stdout == ""
        (line,) = ended.stderr.split("\n")[-2:-1]
        assert line.startswith(f"slipstream: {named}: ") and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--prompt-tokens", "many"], "--prompt-tokens must be"),
        (["--goodput", "ttft"], "--goodput must be"),
        (["--prompts", "/nowhere.jsonl"], "--prompts /nowhere.jsonl cannot be read"),
        (["--model", "other"], "has no model other; it has scripted"),
        (["127.0.0.1:1", "127.0.0.1:2"], "one address, or two to compare; not 3"),
    ],
)
def test_an_option_that_is_wrong_is_named(flags: list[str], line: str, scripted: ScriptedHttp) -> None:
    ended = run(scripted.url, *flags)
    assert ended.returncode == 1 and line in ended.stderr and "Traceback" not in ended.stderr
    assert not scripted.requests


def test_a_token_does_not_leave_in_plaintext() -> None:
    ended = run("http://192.0.2.1/v1", OPENAI_API_KEY="secret")
    assert ended.returncode == 1 and "plaintext" in ended.stderr


def test_a_picture_is_drawn(scripted: ScriptedHttp, tmp_path: Path) -> None:
    ended = run(scripted.url, "--requests", "3", "--picture", str(tmp_path / "times.png"))
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
    refused = run(scripted.url, "--requests", "3", "--picture", str(tmp_path / "nowhere" / "times.png"))
    assert refused.returncode == 1 and "cannot be written" in refused.stderr
