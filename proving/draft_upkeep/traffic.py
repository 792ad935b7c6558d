"""Requests of two tasks: one that stays as it is, and one whose requests change."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from typing import Final, NamedTuple

from slipstream.client import Client, Result, Settings

CHAT: Final = "chat"
LOOKUP: Final = "lookup"
"""The task whose requests change."""

_AT_ONCE = 6

Form = Callable[[str], str]


def question(symbol: str) -> str:
    """Ask about a name as people do; the draft was trained on this."""
    return f"What does {symbol} do?"


def record(symbol: str) -> str:
    """Ask about a name as a program does; the draft has never seen this."""
    return json.dumps({"task": "describe", "symbol": symbol, "format": "one sentence"})


class Rates(NamedTuple):
    """Draft tokens of some turns."""

    turns: int
    drafted: int
    accepted: int

    @property
    def acceptance(self) -> float:
        """The share that was accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0


class Traffic:
    """Sends requests, and compares each answer with the first one to the same request."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()
        self.repeated_count = 0
        """Answers to requests that had been answered before."""
        self.changed_count = 0
        """Such answers that differed."""

    def send(self, task: str, form: Form, symbols: Sequence[str]) -> Rates:
        """Ask about each name once, several at a time."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            results = list(pool.map(lambda symbol: self._ask(task, form(symbol)), symbols))
        drafted = sum(result.draft_token_count for result in results)
        return Rates(len(results), drafted, sum(result.accepted_token_count for result in results))

    @contextmanager
    def running(self, asked: Sequence[tuple[str, Form, str]]) -> Iterator[None]:
        """Inside, these requests are sent again and again."""
        ended = threading.Event()

        def send() -> None:
            for task, form, symbol in cycle(asked):
                if ended.is_set():
                    return
                self._ask(task, form(symbol))

        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(send) for _ in range(2)]
            try:
                yield
            finally:
                ended.set()
            for each in running:
                each.result()

    def _ask(self, task: str, prompt: str) -> Result:
        settings = Settings(temperature=0, draft_length=4, max_token_count=100, task=task)
        result = self._client.answer([("user", prompt)], settings).wait()
        with self._lock:
            first = self._texts.setdefault(prompt, result.text)
            self.repeated_count += first is not result.text
            self.changed_count += first != result.text
        return result
