"""The shell and Python blocks of README and guides run as they stand, against the embedded pair."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.cli.local import LocalServices, PairSettings
from tests.documents import ROOT, Block, shown_blocks, suite_of
from tests.gateway_process import gateway_process

PRINTED_ADDRESS = "127.0.0.1:50051"
"""The orchestrator's address in the pages; the tests' services listen elsewhere."""
PRINTED_HTTP_ADDRESS = "127.0.0.1:8000"
"""The gateway's address in the pages."""

PRELUDE = """
set -e
make() { command make -C {root} --old-file .venv/runtime --old-file .venv/dev "$@"; }
slipstream() {
    case "$1" in
        info|chat|top|trace) command slipstream "$@" --address {address} ;;
        *) command slipstream "$@" ;;
    esac
}
"""
"""What each shell block is run after: commands that take no address in the pages get the tests'."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of an orchestrator that serves the embedded pair."""
    with LocalServices(PairSettings()) as services:
        yield services.orchestrator_address


@pytest.fixture(scope="module")
def http_address(address: str) -> Iterator[str]:
    """The address of a gateway in front of it."""
    with gateway_process(address) as gateway:
        yield gateway.address


def run(command: list[str], folder: Path) -> str:
    """Run a block with the environment's commands first on the PATH, and return what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONSAFEPATH": "1"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "block", [block for block in shown_blocks("python") if suite_of(block) is None], ids=lambda block: block.place
)
def test_a_python_block_runs(block: Block, address: str, http_address: str, tmp_path: Path) -> None:
    program = tmp_path / "block.py"
    program.write_text(block.code.replace(PRINTED_ADDRESS, address).replace(PRINTED_HTTP_ADDRESS, http_address))
    assert run([sys.executable, str(program)], tmp_path).strip()


@pytest.mark.parametrize("block", shown_blocks("sh"), ids=lambda block: block.place)
def test_a_shell_block_runs(block: Block, address: str, http_address: str, tmp_path: Path) -> None:
    prelude = PRELUDE.replace("{root}", str(ROOT)).replace("{address}", address)
    code = block.code.replace(PRINTED_ADDRESS, address).replace(PRINTED_HTTP_ADDRESS, http_address)
    run(["bash", "-c", prelude + code], tmp_path)
