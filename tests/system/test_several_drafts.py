"""Several drafts share the sessions: which of them proposes changes how fast a text comes and
nothing else."""

from __future__ import annotations

import re
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from slipstream.client import Client, Reply, Settings
from tests import tiny_models
from tests.system.conftest import load_of, paper_tokens

TARGET = "arithmetic:ends=0&forward_ms=4"
DRAFT = "arithmetic:ends=0&agreement=0.8&forward_ms=1"
LENGTH = 150
SETTINGS = Settings(max_token_count=LENGTH, draft_length=4)
LONG = 1500
LONG_SETTINGS = Settings(max_token_count=LONG, draft_length=4)
"""Of turns that others begin beside, or something happens to, while they run."""
_SOME = 50
"""Steps with hints that only a turn has whose draft works for more than its beginning. On a busy
machine many hints come too late."""
PROMPTS = [[10 + index, 20, 30, 40] for index in range(4)]


class Group:
    """An orchestrator, a verifier, and places for drafts, which may be empty."""

    def __init__(self, stack: ExitStack, draft_count: int) -> None:
        self._stack = stack
        self.places = [free_address() for _ in range(draft_count)]
        self.drafts: dict[str, Service] = {}
        self.metrics_address = free_address()
        self.verifier = self._start("verifier", "verifier_service", free_address(), ["--model", TARGET])

    def _start(self, role: str, module: str, address: str, flags: list[str]) -> Service:
        service = Service(role, module, address, [*flags, "--drain-seconds", "0"], {})
        self._stack.callback(service.stop)
        return service

    def start_draft(self, place: int, model: str = DRAFT) -> Service:
        address = self.places[place]
        self.drafts[address] = self._start(
            "draft", "draft_service", address, ["--model", model, "--kv-memory-mib", "4"]
        )
        return self.drafts[address]

    def start_orchestrator(self, drafts: str = "") -> None:
        flags = ["--verifier", self.verifier.address, "--draft", drafts or ",".join(self.places)]
        flags += ["--draft-deadline-seconds", "3", "--store", "memory"]
        flags += ["--metrics-address", self.metrics_address]
        self.orchestrator = self._start("orchestrator", "orchestrator", free_address(), flags)
        self.orchestrator.wait_until_healthy()

    @property
    def log(self) -> str:
        return self.orchestrator.log.read_text()

    def metric(self, name: str) -> dict[str, float]:
        """By address."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^slipstream_{name}{{(.*?)}} (\S+)$", text, re.MULTILINE)
        return {re.search(r'address="(.*?)"', labels)[1]: float(value) for labels, value in found}  # type: ignore[index]


@contextmanager
def group(draft_count: int, *models: str) -> Iterator[Group]:
    with ExitStack() as stack:
        services = Group(stack, draft_count)
        for place, model in enumerate(models):
            services.start_draft(place, model)
        for service in (services.verifier, *services.drafts.values()):
            service.wait_until_healthy()
        services.start_orchestrator()
        yield services


def until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def all_known(services: Group) -> Callable[[], bool]:
    return lambda: all(f"the draft service at {address} hosts" in services.log for address in services.drafts)


def begun(replies: list[Reply]) -> list[Iterator[str]]:
    """Their pieces, once each has one."""
    pieces = [iter(reply) for reply in replies]
    for each in pieces:
        next(each)
    return pieces


@pytest.mark.essential
def test_two_drafts_share_the_sessions_and_when_one_is_killed_the_other_proposes_for_all() -> None:
    with group(2, DRAFT, DRAFT) as services, Client(services.orchestrator.address) as client:
        until(all_known(services), "both drafts are known")
        chats = [client.chat(settings=SETTINGS) for _ in PROMPTS]
        replies = [chat.send(f"{index}", LONG_SETTINGS) for index, chat in enumerate(chats)]
        pieces = begun(replies)
        one, two = services.places
        assert services.metric("peer_sessions")[one] == services.metric("peer_sessions")[two] == 2
        services.drafts[one].process.kill()
        for each in pieces:
            deque(each, maxlen=0)
        verified = services.metric("draft_verified_tokens_total")
        accepted = services.metric("draft_accepted_tokens_total")
        for reply in replies:
            assert reply.result.acceptance_rate > 0.5
            assert reply.result.draft_count > _SOME, "it has gone without"
        assert 0 < accepted[one] < verified[one] < verified[two]
        assert services.metric("peer_sessions")[two] == 4
        services.start_draft(0).wait_until_healthy()
        for each in begun([chat.send("on") for chat in chats]):
            deque(each, maxlen=0)

        def is_seen() -> bool:
            client.generate([5, 6, 7], SETTINGS).wait()  # a session of the other draft tries it now and then
            return "answers again" in services.log

        until(is_seen, "no session has seen that it is back")
        thirds = [chat.send("on") for chat in chats]
        for each in begun(thirds):
            deque(each, maxlen=0)
        assert services.metric("peer_sessions")[one] >= 1, "sessions spread again when turns begin"
        assert client.server_info().draft.name == DRAFT
        with client.chat(settings=Settings(max_token_count=LENGTH, draft_length=0)) as undisturbed:
            asked = [("3", Settings(max_token_count=LONG)), ("on", None), ("on", None)]
            texts = [undisturbed.send(text, settings).wait().token_ids for text, settings in asked]
        assert texts[0] == replies[3].result.token_ids and texts[2] == thirds[3].result.token_ids


def test_one_with_another_tokenizer_is_named_and_left_out_and_one_that_comes_later_is_used(tmp_path: Path) -> None:
    model = tiny_models.save(tiny_models.build("llama"), tmp_path / "stranger")
    with group(3, str(model), DRAFT) as services, Client(services.orchestrator.address) as client:
        stranger, _, later = services.places
        until(lambda: f"the draft at {stranger}, " in services.log, "it is not refused")
        assert "has tokenizer" in services.log and "it is not used" in services.log
        results = [client.generate(prompt, SETTINGS).wait() for prompt in PROMPTS[:2]]
        assert [result.token_ids for result in results] == [paper_tokens(prompt, LENGTH) for prompt in PROMPTS[:2]]
        until(lambda: client.generate(PROMPTS[0], SETTINGS).wait().acceptance_rate > 0.5, "the other draft is not used")
        running = client.generate(PROMPTS[2], LONG_SETTINGS)
        (pieces,) = begun([running])
        services.start_draft(2).wait_until_healthy()
        until(lambda: f"the draft service at {later} hosts" in services.log, "it is not found")
        deque(pieces, maxlen=0)
        pair = [client.generate(prompt, LONG_SETTINGS) for prompt in PROMPTS[:2]]
        for each in begun(pair):
            deque(each, maxlen=0)
        assert services.metric("draft_accepted_tokens_total")[later] > 0
        assert services.metric("draft_verified_tokens_total").get(stranger, 0) == 0
        assert load_of(stranger).sequence_count == 0
        for reply, prompt in zip([running, *pair], [PROMPTS[2], *PROMPTS[:2]], strict=True):
            assert reply.result.token_ids == paper_tokens(prompt, LONG)
