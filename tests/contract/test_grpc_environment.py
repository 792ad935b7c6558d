"""A service's grpc waits at its sockets itself, and leaves forks alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_START = """
import asyncio, {package}.__main__, os, grpc.aio
async def start():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await server.stop(None)
asyncio.run(start())
print(os.environ["GRPC_EXPERIMENTS"], os.environ["GRPC_ENABLE_FORK_SUPPORT"])
"""


def start(package: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that imports what the service does, and starts a server."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    return subprocess.run(
        [sys.executable, "-c", _START.format(package=package)],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("package", ["orchestrator", "verifier_service", "draft_service"])
def test_grpc_knows_what_it_is_told(package: str) -> None:
    ran = start(package)
    assert ran.stdout.split() == ["-event_engine_client,-event_engine_listener", "0"]
    assert "Unknown experiment" not in ran.stderr  # a later grpc may have no choice any more: then that variable goes


def test_what_the_environment_says_counts() -> None:
    said = start("orchestrator", GRPC_EXPERIMENTS="nothing_that_is", GRPC_ENABLE_FORK_SUPPORT="1").stdout.split()
    assert said == ["nothing_that_is", "1"]


def test_grpc_says_what_it_does_not_know() -> None:
    assert "Unknown experiment: nothing_that_is" in start("orchestrator", GRPC_EXPERIMENTS="nothing_that_is").stderr
