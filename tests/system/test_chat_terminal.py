"""The chat on a real terminal: Ctrl-C ends an answer and not the chat, a lost server is told and called again."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.cli.local import LocalServices
from slipstream.client import Client
from tests.dropping_proxy import DroppingProxy

CHAT = [sys.executable, "-m", "slipstream.cli", "chat", "--address"]
NUMBERS = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200"}


class Terminal:
    """A chat whose standard streams are a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self._end = end
        self._shown = ""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def read_until(self, text: str) -> None:
        """Read on until the text has come, and no further."""
        while text not in self._shown:
            ready, _, _ = select.select([self._end], [], [], 40)
            assert ready, f"{text!r} does not come after {self._shown!r}"
            self._shown += os.read(self._end, 65536).decode(errors="replace")
        self._shown = self._shown.split(text, 1)[1]


@contextmanager
def chatting(address: str, *flags: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*CHAT, address, *flags],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **NUMBERS},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_ctrl_c_ends_an_answer_and_not_the_chat(paper: LocalServices) -> None:
    with chatting(paper.orchestrator_address, "--max-tokens", "8000") as terminal:
        terminal.read_until("> ")
        terminal.type("hello\n")
        terminal.read_until("[")  # the paper model's second character
        time.sleep(0.2)
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("[cancelled after")
        terminal.read_until("> ")
        terminal.type("\n")
        assert terminal.process.wait(20) == 0


def test_a_lost_server_is_told_and_the_answer_goes_on(paper: LocalServices) -> None:
    with DroppingProxy(paper.orchestrator_address) as proxy, Client(paper.orchestrator_address) as client:
        with chatting(proxy.address, "--max-tokens", "3000") as terminal:
            terminal.read_until("> ")
            terminal.type("hello\n")
            terminal.read_until("[")
            proxy.drop()
            terminal.read_until("the connection is lost; trying again")
            terminal.read_until("[3000 tokens")
            terminal.type("\n")
            assert terminal.process.wait(20) == 0
        assert next(client.list_sessions()).turn_count == 1
