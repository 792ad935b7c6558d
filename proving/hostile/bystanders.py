"""Sessions beside a flood of hostile messages. Their texts must be the same as without the
flood."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from proving.hostile.judge import Judge
from slipstream.client import Client, PeerError, Session, Settings

T = TypeVar("T")

_TURNS = 3
_TOKEN_COUNT = 24
_PATIENCE_SECONDS = 120.0


class Bystanders:
    """Runs sessions as a context, each on its own connection."""

    def __init__(self, address: str, count: int, judge: Judge, seed: int) -> None:
        self._address = address
        self._judge = judge
        self._over = threading.Event()
        rng = random.Random(f"bystanders {seed}")
        self._said = [["x" * rng.randrange(1, 12) for _ in range(_TURNS)] for _ in range(count)]
        self._settings = [
            Settings(temperature=float(index % 2), seed=index, max_token_count=_TOKEN_COUNT, ignore_end_tokens=True)
            for index in range(count)
        ]
        self._expected: list[list[list[int]]] = []
        self._threads: list[threading.Thread] = []
        self.kept: list[str] = []
        """Sessions that other callers may read."""
        self.turn_count = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Bystanders:
        with Client(self._address, reconnect=_PATIENCE_SECONDS) as client:
            for index in range(len(self._said)):
                session = client.create_session(settings=self._settings[index])
                self.kept.append(session.session_id)
                self._expected.append([_said(session, content) for content in self._said[index]])
        self._threads = [threading.Thread(target=self._talk, args=(index,)) for index in range(len(self._said))]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _talk(self, index: int) -> None:
        with Client(self._address, reconnect=_PATIENCE_SECONDS) as client:
            while not self._over.is_set():
                try:
                    got = self._session(client, index)
                except Exception as error:  # every error is a complaint
                    self._judge.complain(f"a bystander got no answer: {type(error).__name__}: {error}")
                    continue
                if got != self._expected[index]:
                    self._judge.complain(f"a bystander was told {got} instead of {self._expected[index]}")
                with self._lock:
                    self.turn_count += len(got)

    def _session(self, client: Client, index: int) -> list[list[int]]:
        session = _patiently(lambda: client.create_session(settings=self._settings[index]))
        try:
            return [_said(session, content) for content in self._said[index]]
        finally:
            client.delete_session(session.session_id)


def _said(session: Session, content: str) -> list[int]:
    def turn() -> list[int]:
        reply = session.send(content)
        for _ in reply.deltas():
            pass
        return reply.result.token_ids

    return _patiently(turn)


def _patiently(ask: Callable[[], T]) -> T:
    """Repeat a call when the service says that a retry helps, as a client should."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except PeerError as error:
            if error.retry_after is None or time.monotonic() > deadline:
                raise
            time.sleep(error.retry_after)
