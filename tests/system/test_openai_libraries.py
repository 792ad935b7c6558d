"""Libraries that speak OpenAI's API, unmodified, get from the gateway what gRPC gives: OpenAI's
package for Node and Vercel's AI SDK by their own tests, and all by the programs of a guide."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from tests import node_packages, tiny_models
from tests.chat_templates import read_tools
from tests.documents import ROOT, Block, blocks, suite_of
from tests.either_client import until
from tests.gateway_process import GatewayProcess, gateway_process
from tests.system.conftest import PAPER_PAIR

PAGE = ROOT / "docs" / "guides" / "clients.md"
PRINTED_ADDRESS = "127.0.0.1:8000"
"""The gateway's address on the page."""
TESTS = ROOT / "tests" / "node_sdks"
ENVIRONMENT = ROOT / "build" / "node_sdks"
MODEL = "embedded-target"
QUESTION, NEXT = "What does os.path.join do?", "And os.path.split?"
SAMPLED = Settings(seed=7, temperature=1.5, max_token_count=40)

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def embedded() -> Iterator[LocalServices]:
    with LocalServices(PairSettings()) as local:
        yield local


@pytest.fixture(scope="module")
def gateway(embedded: LocalServices) -> Iterator[GatewayProcess]:
    with gateway_process(embedded.orchestrator_address) as running:
        yield running


@pytest.fixture(scope="module")
def lasting() -> Iterator[LocalServices]:
    """Its answers take minutes."""
    with LocalServices(dataclasses.replace(PAPER_PAIR, target=f"{PAPER_PAIR.target}&forward_ms=15")) as local:
        yield local


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway to a small random model whose chat template reads tools."""
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path_factory.mktemp("model") / "target")
    read_tools(directory)
    with (
        LocalServices(PairSettings(target=str(directory), draft="")) as local,
        gateway_process(local.orchestrator_address) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def expected(embedded: LocalServices) -> dict[str, Any]:
    """What Python's gRPC client gets."""
    with Client(embedded.orchestrator_address) as client:
        with client.chat(settings=SAMPLED) as chat:
            turns = [chat.send(question).wait().text for question in (QUESTION, NEXT)]
        several = client.answer([("user", QUESTION)], SAMPLED, choice_count=3)
        several.wait()
        scored = client.answer([("user", QUESTION)], dataclasses.replace(SAMPLED, top_logprob_count=2)).wait()
        continued = client.generate("import os.path", SAMPLED).wait()
    return {
        "chat": several.results[0].text,
        "session": turns,
        "choices": [result.text for result in several.results],
        "logprobs": [token.logprob for token in scored.logprobs],
        "continuation": continued.text,
    }


@pytest.fixture(scope="module")
def environment() -> Path:
    """A folder with the packages and the tests of them."""
    shutil.copytree(TESTS, ENVIRONMENT, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
    node_packages.install(ENVIRONMENT)
    return ENVIRONMENT


def test_the_packages_get_what_grpc_gives(
    gateway: GatewayProcess,
    lasting: LocalServices,
    tools: GatewayProcess,
    expected: dict[str, Any],
    environment: Path,
) -> None:
    with (
        gateway_process(lasting.orchestrator_address, "--model-name", "lasting") as slow,
        Client(lasting.orchestrator_address) as client,
    ):
        services = {
            "url": f"http://{gateway.address}/v1",
            "model": MODEL,
            "lasting": {"url": f"http://{slow.address}/v1", "model": "lasting"},
            "tools": {"url": f"http://{tools.address}/v1", "model": "target"},
            "question": QUESTION,
            "next": NEXT,
            "expected": expected,
        }
        files = [file.name for file in environment.glob("*.test.mjs")]
        variables = {"SLIPSTREAM_TEST_SERVICES": json.dumps(services)}
        shown = node_packages.run(["node", "--test", *sorted(files)], environment, variables)
        assert "skipped 0" in shown
        until(lambda: client.status().processes[0].running_turn_count == 0)
        assert 0 < client.status().processes[0].generated_token_count < 2 * 8000


@pytest.fixture(scope="module")
def answer(embedded: LocalServices) -> str:
    """The text that each program of the guide prints."""
    with Client(embedded.orchestrator_address) as client:
        return client.answer([("user", QUESTION)], Settings(seed=7, max_token_count=40)).wait().text


@pytest.mark.parametrize("block", list(blocks(PAGE)), ids=lambda block: block.place)
def test_a_program_of_the_guide_prints_grpcs_text(
    block: Block, gateway: GatewayProcess, answer: str, environment: Path, tmp_path: Path
) -> None:
    code = block.code.replace(PRINTED_ADDRESS, gateway.address)
    if block.language == "js":
        program = environment / "program.js"  # beside the packages that it imports
        program.write_text(code)
        assert node_packages.run(["node", str(program)], environment).strip() == answer.strip()
        return
    suite = suite_of(block)
    python = Path(sys.executable) if suite is None else ROOT / ".venv" / suite / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{suite} is not installed: make suite-snippets installs it and runs this")
    program = tmp_path / "program.py"
    program.write_text(code)
    assert node_packages.run([str(python), str(program)], tmp_path).strip() == answer.strip()
