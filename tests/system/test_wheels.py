"""The wheels, installed in empty environments: each extra brings what its program needs, the base
package is small, and their programs chat."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from slipstream.cli.local import LocalServices, free_address
from tests.gateway_process import gateway_process
from tests.system.conftest import wait_for_health
from tests.wheel_environments import WheelEnvironment, build_wheels, empty_environment

MOST_BYTES = 60_000_000
"""Most bytes that the base package and what it needs may take."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], WheelEnvironment]:
    def install(extra: str) -> WheelEnvironment:
        environment = empty_environment(tmp_path_factory.mktemp("environment") / "venv")
        environment.install(wheel(wheels, "slipstream_llm"), extra, bytecode=not extra)
        return environment

    return install


@pytest.fixture(scope="module")
def base(installed: Callable[[str], WheelEnvironment]) -> WheelEnvironment:
    return installed("")


def wheel(folder: Path, name: str) -> Path:
    (path,) = folder.glob(f"{name}-*.whl")
    return path


@contextmanager
def orchestrator_of(environment: WheelEnvironment, verifier: str) -> Iterator[str]:
    address = free_address()
    command = [environment.python, "-P", "-m", "orchestrator", "--verifier", verifier, "--address", address]
    with subprocess.Popen([*command, "--store", "memory"], cwd="/") as process:
        try:
            with grpc.insecure_channel(address) as channel:
                wait_for_health(channel)
            yield address
        finally:
            process.terminate()


def chat(environment: WheelEnvironment, address: str) -> str:
    command = ("slipstream", "chat", "--address", address, "--max-tokens", "5")
    said = environment.run(*command, text="hello\n")
    assert said.returncode == 0, said.stderr
    return said.stdout


CLIENT = """
from slipstream.client import Client, Settings
with Client({!r}) as client:
    print(client.generate("hello", Settings(max_token_count=5, seed=1)).wait().text)
"""


def test_the_base_package_is_small_and_chats(base: WheelEnvironment, paper: LocalServices) -> None:
    assert base.size < MOST_BYTES, f"{base.size} bytes"
    assert "[5 tokens, " in chat(base, paper.orchestrator_address)
    asked = base.run("python", "-P", "-c", CLIENT.format(paper.orchestrator_address))
    assert (asked.stderr, bool(asked.stdout.strip())) == ("", True)
    load = ("slipstream", "bench", paper.orchestrator_address, "--requests", "2", "--max-tokens", "5")
    assert "2 answers, 10 tokens" in base.run(*load).stdout
    listed = base.run("slipstream", "list")
    assert "Qwen/Qwen3-8B" in listed.stdout and "slipstream-llm[hub,compiled]" in listed.stderr


def test_the_embedded_pair_is_a_package_of_its_own(wheels: Path, base: WheelEnvironment, tmp_path: Path) -> None:
    model = "from slipstream.cli.model_arguments import refuse_wrong_model; refuse_wrong_model('--target', 'embedded')"
    refused = base.run("python", "-P", "-c", model)
    assert refused.stderr.splitlines()[-1].endswith(
        "--target embedded: the embedded pair is not installed: pip install 'slipstream-llm[embedded]'"
    )
    pair = empty_environment(tmp_path / "venv")
    pair.install(wheel(wheels, "slipstream_llm"))
    pair.install(wheel(wheels, "slipstream_llm_embedded"))
    allowed = pair.run("python", "-P", "-c", model)
    assert (allowed.returncode, allowed.stderr) == (0, "")
    assert pair.size > MOST_BYTES  # else this package would prove nothing
    (folder,) = pair.folder.glob("lib/python*/site-packages/slipstream/embedded")
    own = Path(__file__).parents[2] / "slipstream" / "embedded"
    missing = [path for path in own.glob("*/*") if not (folder / path.relative_to(own)).is_file()]
    assert not missing


def test_the_orchestrators_extra_serves_a_chat(
    installed: Callable[[str], WheelEnvironment], base: WheelEnvironment, paper: LocalServices
) -> None:
    with orchestrator_of(installed("[orchestrator]"), paper.verifier_address) as address:
        assert "[5 tokens, " in chat(base, address)


def test_the_gateways_extra_serves_a_chat(installed: Callable[[str], WheelEnvironment], paper: LocalServices) -> None:
    with gateway_process(paper.orchestrator_address, python=installed("[gateway]").python) as gateway:
        question = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
        model = gateway.send("/v1/models").body["data"][0]["id"]
        answer = gateway.send("/v1/chat/completions", question | {"model": model})
        assert answer.status == 200, answer.body
        assert answer.body["usage"]["completion_tokens"] == 5
        assert "<title>" in gateway.send("/", headers={"accept": "text/html"}).body
        assert "slipstream_gateway" in gateway.send("/metrics").body
