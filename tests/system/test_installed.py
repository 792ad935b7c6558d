"""What an installation brings: the client is usable without what hosts models, and type checkers
find it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from slipstream.cli.local import LocalServices

CHECKOUT = Path(__file__).parents[2]
SLIPSTREAM = [sys.executable, "-m", "slipstream.cli"]

TORCH = ("torch", "transformers")
COMPILED = ("numba", "safetensors")
SERVICES = (
    "numpy",
    "tokenizers",
    "llguidance",
    "opentelemetry",
    "pydantic_settings",
    "grpc_channelz",
    "grpc_reflection",
)
ORCHESTRATOR = ("jinja2",)
GATEWAY = ("fastapi", "uvicorn")


class Installation:
    """An interpreter, and all that it starts, as if some packages were not installed."""

    def __init__(self, directory: Path, absent: tuple[str, ...]) -> None:
        # Python reads it first: what is None there can be neither imported nor found.
        (directory / "sitecustomize.py").write_text(f"import sys; sys.modules.update(dict.fromkeys({absent}))")
        path = os.pathsep.join([str(directory), str(CHECKOUT)])
        self._environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "NO_COLOR": "1"}

    def run(self, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=100, env=self._environment, cwd="/"
        )


@pytest.fixture
def client_only(tmp_path: Path) -> Installation:
    return Installation(tmp_path, TORCH + COMPILED + SERVICES + ORCHESTRATOR)


def test_the_client_and_every_help_need_no_extra(client_only: Installation) -> None:
    imported = client_only.run(sys.executable, "-c", "import slipstream.client, slipstream.cli.__main__")
    assert (imported.returncode, imported.stderr) == (0, "")
    refused = client_only.run(sys.executable, "-c", "import torch")
    assert "ModuleNotFoundError" in refused.stderr  # else this would prove nothing
    for command in ([], ["chat"], ["serve"], ["info"], ["bench"], ["top"], ["trace"], ["session", "list"]):
        shown = client_only.run(*SLIPSTREAM, *command, "--help")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "Usage" in shown.stdout


def test_a_remote_orchestrator_is_talked_to_without_any_extra(client_only: Installation, paper: LocalServices) -> None:
    address = ["--address", paper.orchestrator_address]
    assert "arithmetic:" in client_only.run(*SLIPSTREAM, "info", *address).stdout
    said = client_only.run(*SLIPSTREAM, "chat", *address, "--max-tokens", "5", text="hello\n")
    assert said.returncode == 0
    assert "[5 tokens, " in said.stdout
    bench = client_only.run(*SLIPSTREAM, "bench", *address, "--requests", "4", "--max-tokens", "5", "--json")
    assert json.loads(bench.stdout)["servers"][0]["requests"] == {"completed": 4, "failed": 0}


@pytest.mark.parametrize(
    ("command", "absent", "line"),
    [
        (
            ["slipstream.cli", "serve"],
            COMPILED + SERVICES + ORCHESTRATOR,
            "slipstream: {}[compiled,orchestrator,gateway]'",
        ),
        (["slipstream.cli", "serve"], GATEWAY, "slipstream: {}[gateway]'"),
        (["slipstream.cli", "chat", "--local"], ORCHESTRATOR, "slipstream: {}[orchestrator]'"),
        (["slipstream.cli", "serve", "--no-http"], GATEWAY + COMPILED, "slipstream: {}[compiled]'"),
        (["verifier_service", "--model", "embedded"], COMPILED, "verifier: {}[compiled]'"),
        (["draft_service", "--model", "embedded"], SERVICES, "draft: {}[compiled]'"),
        (["orchestrator"], SERVICES, "orchestrator: {}[orchestrator]'"),
        (["gateway"], GATEWAY, "gateway: {}[gateway]'"),
    ],
)
def test_what_needs_an_extra_says_how_to_install_it(
    command: list[str], absent: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    ended = Installation(tmp_path, absent).run(sys.executable, "-m", *command)
    assert ended.returncode == 1
    advice = "this needs packages that are not installed: pip install 'slipstream-llm"
    assert ended.stderr.splitlines() == [line.format(advice)]


@pytest.mark.parametrize(
    "command",
    [
        ["slipstream.cli", "up"],
        ["slipstream.cli", "serve"],
        ["slipstream.cli", "chat", "--local"],
        ["verifier_service", "--model", "embedded"],
    ],
    ids=" ".join,
)
def test_a_command_without_a_model_says_how_to_install_the_embedded_pair(command: list[str], tmp_path: Path) -> None:
    ended = Installation(tmp_path, ("slipstream.embedded",)).run(sys.executable, "-m", *command)
    assert ended.returncode != 0
    last = ended.stderr.splitlines()[-1]
    assert last.endswith("the embedded pair is not installed: pip install 'slipstream-llm[embedded]'"), ended.stderr


def test_the_orchestrator_needs_nothing_that_hosts_models(tmp_path: Path) -> None:
    installation = Installation(tmp_path, TORCH + COMPILED)
    assert "--verifier" in installation.run(sys.executable, "-m", "orchestrator", "--help").stdout
    alone = "import orchestrator.processes.process, orchestrator.processes.supervisor"
    assert installation.run(sys.executable, "-c", alone).stderr == ""


def test_the_gateway_needs_nothing_that_the_services_bring_alone(tmp_path: Path) -> None:
    services = ("numpy", "tokenizers", "llguidance", "opentelemetry.sdk", "grpc_channelz", "grpc_reflection")
    installation = Installation(tmp_path, TORCH + COMPILED + services + ORCHESTRATOR)
    assert "--orchestrator" in installation.run(sys.executable, "-m", "gateway", "--help").stdout
    assert installation.run(sys.executable, "-c", "import gateway.serving").stderr == ""


PROJECT = """
from slipstream.client import Client, Settings

def answer(prompt: str) -> str:
    with Client("127.0.0.1:50051") as client:
        return client.generate(prompt, Settings(temperature=0.8)).wait().text

def wrong(client: Client) -> int:
    return client.generate("x", Settings(temperature="hot")).wait().text
"""


def test_a_type_checker_sees_the_client_from_another_project(tmp_path: Path) -> None:
    # An editable installation leaves a second description, without an origin, in the checkout.
    origins = [
        json.loads(d.read_text("direct_url.json") or "{}").get("url") for d in distributions(name="slipstream-llm")
    ]
    if CHECKOUT.as_uri() not in origins:
        pytest.skip(f"this interpreter's slipstream is not installed from {CHECKOUT}, but from {origins}")
    (tmp_path / "project.py").write_text(PROJECT)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", sys.executable, "project.py"]
    checked = subprocess.run(mypy, capture_output=True, text=True, timeout=100, cwd=tmp_path, env=environment)
    found = re.findall(r"\[([a-z-]+)\]$", checked.stdout, re.MULTILINE)
    assert sorted(found) == ["arg-type", "return-value"], (
        f"{checked.stdout}; make installs so that type checkers understand it"
    )
