"""A target answers a file of prompts, several at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from slipstream.cli.prompt_lines import Prompt
from slipstream.client import Client, PeerError, Settings

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Asking:
    """Settings by which prompts are answered."""

    max_tokens: int
    sampling: Mapping[str, float]
    """Sampling fields but for the seed. Those that are not there are the model's own."""
    seed: int
    """The prompt in line n is answered with the seed ``seed + n``."""
    concurrency: int

    def settings(self, prompt: Prompt) -> Settings:
        """Return the settings of a prompt."""
        sampling: dict[str, Any] = {**self.sampling, "seed": (self.seed + prompt.line) % 2**63}
        return Settings(max_token_count=self.max_tokens, **sampling)

    def key(self, target: str, prompt: Prompt) -> str:
        """Return a name of a target's answer to a prompt by these settings."""
        others = {name: value for name, value in sorted(self.sampling.items()) if name != "temperature"}
        temperature = self.sampling.get("temperature")
        asked = f"{target}\0{self.max_tokens}\0{temperature}\0{self.seed}\0{prompt!r}{others or ''}"
        return hashlib.sha256(asked.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt that was asked: the tokens of its answer, or the reason why there is none."""

    prompt: Prompt
    prompt_token_count: int = 0
    token_ids: Sequence[int] = ()
    error: str = ""


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
        result = reply.wait()
        return Answered(prompt, result.prompt_token_count, result.token_ids)
    except PeerError as error:
        return Answered(prompt, error=str(error))


def listed(numbers: Iterable[int], most: int = 10) -> str:
    """Return some line numbers as a text."""
    known = sorted(numbers)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(map(str, known[:most])) + more
