"""Commands where the system lacks what Linux has: macOS waits for no signal, Windows has no
SIGHUP."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from slipstream.cli import __main__ as cli

_LINUX_ONLY = ("sigtimedwait", "sigwaitinfo", "SIGCHLD", "pthread_sigmask")


@pytest.fixture
def signals_kept() -> Iterator[None]:
    kinds = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    held = {number: signal.getsignal(number) for number in kinds}
    yield
    for number, handler in held.items():
        signal.signal(number, handler)


def test_up_notices_a_service_that_ends_where_no_signal_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _LINUX_ONLY:
        monkeypatch.delattr(signal, name)
    polls = iter([None, None, 1, 1])
    ended = SimpleNamespace(
        address="127.0.0.1:1",
        log="log",
        process=SimpleNamespace(poll=lambda: next(polls)),
        last_words=lambda: "orchestrator: its last words",
    )

    @contextmanager
    def serving(*_: Any, **__: Any) -> Iterator[Any]:
        yield SimpleNamespace(services={"orchestrator": ended}, orchestrator_address="127.0.0.1:1", gateway=None)

    monkeypatch.setattr("slipstream.cli.commands.serve.serving", serving)
    result = CliRunner().invoke(cli.app, ["up"])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception


@pytest.mark.usefixtures("signals_kept")
def test_commands_run_where_a_terminal_cannot_hang_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.setattr(sys, "argv", ["slipstream", "version"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
