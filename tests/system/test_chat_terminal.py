"""Chat and top on a real terminal: Ctrl-C, a server that is lost and comes back, tokens that are
marked."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slipstream.cli.local import LocalServices
from slipstream.client import Client
from tests.dropping_proxy import DroppingProxy

SLIPSTREAM = [sys.executable, "-m", "slipstream.cli"]
DUMB = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200"}
COLOURLESS = {"TERM": "xterm-256color", "NO_COLOR": "1", "COLUMNS": "80", "LINES": "24"}


class Terminal:
    """A command whose standard streams are a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self.end = end
        self._shown = ""

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def read_until(self, text: str) -> str:
        """Read on until the text has come, and no further; what came before it."""
        while text not in self._shown:
            ready, _, _ = select.select([self.end], [], [], 40)
            assert ready, f"{text!r} does not come after {self._shown!r}"
            self._shown += os.read(self.end, 65536).decode(errors="replace")
        before, self._shown = self._shown.split(text, 1)
        return before


@contextmanager
def on_terminal(environment: dict[str, str], *command: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*SLIPSTREAM, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.essential
def test_ctrl_c_ends_an_answer_and_not_the_chat(paper: LocalServices) -> None:
    # Without a draft, or a quick machine has said it all before it is interrupted.
    chat = "chat", "--max-tokens", "8000", "--draft-length", "0", "--address", paper.orchestrator_address
    with on_terminal(DUMB, *chat) as terminal:
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
        chat = "chat", "--max-tokens", "6000", "--draft-length", "0", "--address", proxy.address
        with on_terminal(DUMB, *chat) as terminal:
            terminal.read_until("> ")
            terminal.type("hello\n")
            terminal.read_until("[")
            proxy.drop()
            terminal.read_until("the connection is lost; trying again")
            terminal.read_until("[6000 tokens")
            terminal.type("\n")
            assert terminal.process.wait(20) == 0
        assert next(client.list_sessions()).turn_count == 1


def test_marked_tokens_are_the_same_text_and_told_apart_without_colours(paper: LocalServices) -> None:
    chat = ["chat", "--max-tokens", "60", "--temperature", "0", "--draft-length", "4"]
    said = []
    for flags in ((), ("--show-rounds",)):
        with on_terminal(COLOURLESS, *chat, *flags, "--address", paper.orchestrator_address) as terminal:
            opening = terminal.read_until("> ")
            terminal.type("hello\n")
            terminal.read_until("hello\r\n")
            said.append(terminal.read_until("60 tokens, "))
            counts = terminal.read_until("> ")
            terminal.type("\n")
            assert terminal.process.wait(20) == 0
    plain, marked = said
    assert re.sub(r"\x1b\[[0-9;]*m", "", marked) == re.sub(r"\x1b\[[0-9;]*m", "", plain)
    assert "\x1b[4m" in marked and "\x1b[7m" in marked, "accepted is underlined, recovered is reversed"
    assert "\x1b[4m" not in plain
    assert "\x1b[4maccepted draft\x1b[0m" in opening and "\x1b[7mrecovered from rejection\x1b[0m" in opening
    numbers = re.findall(r"(\d+) (?:\x1b\[[0-9;]*m)?(draft|n-gram|recovered|bonus|plain)", counts)
    assert [name for _, name in numbers] == ["draft", "n-gram", "recovered", "bonus", "plain"]
    assert sum(int(number) for number, _ in numbers) == 60


def test_top_survives_a_server_restart_and_leaves_the_terminal_clean(
    paper: LocalServices,
) -> None:
    command = ("top", "--interval", "0.2", "--address")
    with (
        DroppingProxy(paper.orchestrator_address) as proxy,
        on_terminal(COLOURLESS, *command, proxy.address) as terminal,
    ):
        terminal.read_until("\x1b[?1049h")  # another screen than the shell's
        terminal.read_until("last minute")
        proxy.refusing = True
        proxy.drop()
        terminal.read_until("asking again")
        proxy.refusing = False
        while "asking again" in terminal.read_until("no turn is running"):
            pass
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("\x1b[?1049l")
        assert terminal.process.wait(20) == 0


def test_a_typed_line_that_is_no_text_is_not_sent_and_the_chat_goes_on(paper: LocalServices) -> None:
    with on_terminal(DUMB, "chat", "--max-tokens", "2", "--address", paper.orchestrator_address) as terminal:
        terminal.read_until("> ")
        os.write(terminal.end, b"tw\xffo\r")
        terminal.read_until("line 1 of standard input is not UTF-8: byte 0xff at position 3; it is not sent")
        terminal.read_until("> ")
        terminal.type("two\r")
        terminal.read_until("[2 tokens, ")
        terminal.read_until("> ")
        terminal.type("\r")
        assert terminal.process.wait(30) == 0
