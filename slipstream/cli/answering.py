"""A target answers a file of prompts, several at a time, and what is answered is noted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from slipstream.cli.prompt_lines import Prompt
from slipstream.client import Client, PeerError, Settings
from slipstream.transport.reloading import FileError

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Asking:
    """Settings by which prompts are answered."""

    max_tokens: int
    temperature: float | None
    """Temperature of the answers; None for the model's own."""
    seed: int
    """The prompt in line n is answered with the seed ``seed + n``."""
    concurrency: int

    def settings(self, prompt: Prompt) -> Settings:
        """Return the settings of a prompt."""
        return Settings(
            max_token_count=self.max_tokens, temperature=self.temperature, seed=(self.seed + prompt.line) % 2**63
        )


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt that was asked: the tokens of its answer, or the reason why there is none."""

    prompt: Prompt
    token_count: int = 0
    error: str = ""


class Journal:
    """The prompts that were answered, as hashes in a private file. An empty path: none are
    noted."""

    def __init__(self, path: Path | None, target: str, asking: Asking) -> None:
        """FileError if the file cannot be read."""
        self._path, self._asked = path, f"{target}\0{asking.max_tokens}\0{asking.temperature}\0{asking.seed}"
        try:
            self._known = set(path.read_text().split()) if path is not None and path.exists() else set()
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror or error}") from error

    def knows(self, prompt: Prompt) -> bool:
        """Return whether a prompt was answered by the same target with the same settings."""
        return self._key(prompt) in self._known

    def note(self, prompt: Prompt) -> None:
        """Note that a prompt was answered. OSError."""
        if self._path is None:
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{self._key(prompt)}\n")

    def _key(self, prompt: Prompt) -> str:
        return hashlib.sha256(f"{self._asked}\0{prompt!r}".encode()).hexdigest()[:32]


def answers(
    client: Client, prompts: Sequence[Prompt], asking: Asking, look: Callable[[], None] = lambda: None
) -> Iterator[Answered]:
    """Yield the prompts as they are answered. ``look`` is called about once a second; what it
    raises ends the asking."""
    waiting = iter(prompts)
    pool = ThreadPoolExecutor(asking.concurrency, thread_name_prefix="ask")
    running: set[Future[Answered]] = set()
    try:
        while True:
            running |= {
                pool.submit(_answer, client, prompt, asking)
                for _, prompt in zip(range(asking.concurrency - len(running)), waiting, strict=False)
            }
            if not running:
                return
            done, running = wait(running, _LOOK_SECONDS, FIRST_COMPLETED)
            look()
            yield from (future.result() for future in done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _answer(client: Client, prompt: Prompt, asking: Asking) -> Answered:
    settings = asking.settings(prompt)
    try:
        reply = client.answer(prompt.messages, settings) if prompt.messages else client.generate(prompt.text, settings)
        return Answered(prompt, len(reply.wait().token_ids))
    except PeerError as error:
        return Answered(prompt, error=str(error))


def listed(numbers: Iterable[int], most: int = 10) -> str:
    """Return some line numbers as a text."""
    known = sorted(numbers)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(map(str, known[:most])) + more
