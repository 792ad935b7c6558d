"""`slipstream serve`: HTTP and gRPC from one command, and nothing left after it."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from openai import OpenAI

from proving.certificates import Authority
from slipstream.cli.local import free_address
from slipstream.client import Client, Settings
from slipstream.sampling.rule import SamplingRule
from tests.commands import run, started, wait_until_none_left
from tests.fake_vllm import FakeVllm, text_after

PAPER = ["arithmetic:ends=0", "--speculative-model", "arithmetic:ends=0", "--store", "memory"]
NAMES = ("orchestrator", "verifier", "draft")


@dataclass(frozen=True, slots=True)
class Served:
    """A running `slipstream serve`."""

    process: subprocess.Popen[str]
    shown: str
    http: str
    grpc: str

    def example(self) -> list[str]:
        """The command that it shows."""
        (line,) = re.findall(r"^ +try  (.+)$", self.shown, flags=re.M)
        return shlex.split(line)


@contextmanager
def serving(*flags: str) -> Iterator[Served]:
    """A `slipstream serve` that is ready, on free ports."""
    ports = free_ports()
    http = ports[ports.index("--port") + 1]
    with started(["serve", *flags, *ports]) as (process, shown):
        yield Served(process, shown, f"127.0.0.1:{http}", ports[ports.index("--orchestrator-address") + 1])


def free_ports() -> list[str]:
    """Flags for an address of each service."""
    flags = [word for name in NAMES for word in (f"--{name}-address", free_address())]
    return [*flags, "--port", free_address().rpartition(":")[2]]


@pytest.mark.essential
def test_openais_package_and_grpc_give_one_text_and_sigterm_ends_well() -> None:
    question = "What does os.path.join do?"
    with serving("--store", "memory", "--served-model-name", "python-names") as served:
        client = OpenAI(base_url=f"http://{served.http}/v1", api_key="unused", max_retries=0)
        answer = client.chat.completions.create(
            model="python-names", messages=[{"role": "user", "content": question}], seed=7, temperature=0.9
        )
        with Client(served.grpc) as grpc, grpc.chat() as chat:
            reply = chat.send(question, Settings(seed=7, temperature=0.9)).wait()
        assert answer.choices[0].message.content == reply.text != ""
        tried = subprocess.run(served.example(), capture_output=True, text=True, timeout=60, check=True)
        assert "Join two or more pathname components" in tried.stdout
        for line in (f"HTTP  http://{served.http}/v1", f"web chat  http://{served.http}/", f"gRPC  {served.grpc}"):
            assert line in served.shown
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
    wait_until_none_left()


@pytest.mark.essential
def test_with_a_servers_address_a_stock_engine_computes_the_target(tmp_path: Path) -> None:
    key = "a-key-of-the-server-itself"
    (tmp_path / "key").write_text(f"{key}\n")
    prompt = [*range(100, 140)]
    with FakeVllm().serving() as fake:
        flags = ["--engine", "vllm", "--engine-address", fake.url, "--engine-token-file", str(tmp_path / "key")]
        with serving("--store", "memory", "--no-http", *flags) as served, Client(served.grpc) as client:
            reply = client.generate(prompt, Settings(temperature=0.8, seed=3, max_token_count=40)).wait()
            assert client.server_info().target.device == "vLLM 0.32.0"
        assert fake.authorizations == {f"Bearer {key}"}
    rule = SamplingRule(temperature=0.8, seed=3, end_token_ids=(2,))
    assert reply.token_ids == text_after(prompt, 40, rule)
    wait_until_none_left()


def test_killed_it_leaves_no_process() -> None:
    with serving(*PAPER) as served:
        children = psutil.Process(served.process.pid).children(recursive=True)
        assert len(children) >= 4
        served.process.kill()
        _, alive = psutil.wait_procs(children, 60)
        assert not alive


def test_it_ends_with_the_first_service_that_ends() -> None:
    with serving(*PAPER) as served:
        (gateway,) = (each for each in psutil.Process(served.process.pid).children() if "gateway" in each.cmdline())
        gateway.kill()
        assert served.process.wait(60) == 1
        assert served.process.stderr is not None
        assert "the gateway service ended" in served.process.stderr.read()
    wait_until_none_left()


def test_with_a_certificate_the_api_is_https_and_the_example_takes_a_token(tmp_path: Path) -> None:
    made = run("token", "shop")
    token = made.stderr.rpartition(" ")[2].strip()
    (tmp_path / "access.toml").write_text(made.stdout)
    own = Authority(tmp_path, "own").issue("gateway")
    certificate = ["--ssl-certfile", str(own.certificate), "--ssl-keyfile"]
    with serving(*PAPER, *certificate, str(own.key), "--access", str(tmp_path / "access.toml")) as served:
        assert f"HTTP  https://{served.http}/v1" in served.shown
        command = [word.replace("$SLIPSTREAM_TOKEN", token) for word in served.example()]
        assert command[1:3] == ["--cacert", str(own.certificate)]
        command[2] = str(tmp_path / "own.pem")
        tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert '"arithmetic:ends=0"' in tried.stdout
    ended = run("serve", *PAPER, *free_ports(), *certificate, str(tmp_path / "away"))
    assert ended.returncode == 1
    assert f"slipstream: gateway: --ssl-keyfile {tmp_path / 'away'} cannot be read" in ended.stderr
    wait_until_none_left()
