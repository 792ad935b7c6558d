"""Several drafts at once for each session: where one is wrong, another may be right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from slipstream.client import Client, Settings
from tests.system.conftest import paper_tokens

TARGET = "arithmetic:ends=0&forward_ms=8"
EVEN, ODD = "arithmetic:ends=0&half=0", "arithmetic:ends=0&half=1"
LENGTH = 150
SETTINGS = Settings(max_token_count=LENGTH, draft_length=4)
"""Settings with a fixed draft length. Each step waits a moment for a hint, so a busy machine
changes little."""
PROMPTS = [[10 + number, 20, 30, 40] for number in range(6)]


class Served:
    """An orchestrator over one verifier and some drafts."""

    def __init__(self, stack: ExitStack, models: Sequence[str], at_once: int) -> None:
        self._stack = stack
        verifier = self._start("verifier", "verifier_service", ["--model", TARGET])
        self.drafts = [
            self._start("draft", "draft_service", ["--model", model, "--kv-memory-mib", "4"]) for model in models
        ]
        for service in (verifier, *self.drafts):
            service.wait_until_healthy()
        flags = ["--verifier", verifier.address, "--draft", ",".join(draft.address for draft in self.drafts)]
        flags += ["--drafts-per-session", str(at_once), "--store", "memory"]
        self.orchestrator = self._start("orchestrator", "orchestrator", flags)
        self.orchestrator.wait_until_healthy()

    def _start(self, role: str, module: str, flags: list[str]) -> Service:
        service = Service(role, module, free_address(), [*flags, "--drain-seconds", "0"], {})
        self._stack.callback(service.stop)
        return service

    def accepted_counts(self) -> list[int]:
        """Accepted tokens of each text; each text is what the target says by itself."""
        counts = []
        with Client(self.orchestrator.address) as client:
            for prompt in PROMPTS:
                result = client.generate(prompt, SETTINGS).wait()
                assert list(result.token_ids) == paper_tokens(prompt, LENGTH)
                counts.append(result.accepted_token_count)
        return counts


@contextmanager
def served(models: Sequence[str], at_once: int = 1) -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(stack, models, at_once)


@pytest.mark.essential
def test_two_drafts_that_know_different_texts_beat_each_alone() -> None:
    with served([EVEN, ODD], at_once=2) as both:
        together = both.accepted_counts()
        both.drafts[1].process.kill()
        with_one_dead = both.accepted_counts()
    with served([EVEN]) as one:
        alone = one.accepted_counts()
    assert all(count > LENGTH // 4 for count in together), "each text has a draft that knows it"
    assert all(count > LENGTH // 4 for count in alone[::2]) and not any(alone[1::2])
    assert sum(together) > 1.5 * sum(alone)
    assert all(count > LENGTH // 4 for count in with_one_dead[::2]) and not any(with_one_dead[1::2])
