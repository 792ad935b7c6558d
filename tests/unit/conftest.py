"""Keeps the unit tests pure: no compiler, no process, no socket.

A unit test that imports a compiler or PyTorch, starts a process or opens a connection fails, and
its error names the folder where such a test belongs.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any, NoReturn

import grpc
import pytest

COMPILERS = frozenset({"llama_cpp", "numba", "torch", "transformers", "triton", "xllamacpp"})

PLACES = {
    "socket.bind": "opens a socket: such tests are in tests/contract",
    "socket.connect": "opens a connection: such tests are in tests/contract",
    "subprocess.Popen": "starts a process: such tests are in tests/contract or tests/system",
    "os.fork": "starts a process: such tests are in tests/contract or tests/system",
    "os.posix_spawn": "starts a process: such tests are in tests/contract or tests/system",
}
"""What a unit test must not do, by the event that Python raises for it, and where it may."""


class ImpureError(Exception):
    """A unit test did what unit tests must not do."""


class _Watch:
    """Raises `ImpureError` from Python's audit events while a unit test is collected or runs."""

    def __init__(self) -> None:
        self.is_on = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event == "import" and str(arguments[0]).partition(".")[0] in COMPILERS:
            raise ImpureError(f"a unit test imports {arguments[0]}: such tests are in tests/engine")
        if event in PLACES:
            raise ImpureError(f"a unit test {PLACES[event]}")


_watch = _Watch()
sys.addaudithook(_watch)


def _watched() -> Generator[None, Any, Any]:
    _watch.is_on = True
    try:
        return (yield)
    finally:
        _watch.is_on = False


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    return (yield from _watched())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _watched())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _watched())


@pytest.fixture(autouse=True)
def _no_grpc_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse gRPC servers: gRPC opens sockets in C, where Python raises no audit event. A channel
    alone opens none."""

    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise ImpureError("a unit test makes a gRPC server: such tests are in tests/contract")

    monkeypatch.setattr(grpc, "server", refuse)
    monkeypatch.setattr(grpc.aio, "server", refuse)
