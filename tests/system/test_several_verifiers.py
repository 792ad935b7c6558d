"""Sessions move to another verifier when theirs goes away, and only to one of the same weights."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from slipstream.cli.local import Service, free_address
from slipstream.client import Client, PeerError, Settings
from slipstream.v1 import orchestrator_pb2
from tests.system.conftest import load_of, paper_tokens

PROMPT = [10, 20, 30, 40]
LENGTH = 300
SETTINGS = Settings(max_token_count=LENGTH)
TARGET = "arithmetic:ends=0&forward_ms=5"


class Group:
    """An orchestrator without a draft, and the verifiers it shares its sessions between."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.verifiers: list[Service] = []
        self.orchestrator: Service

    def start_verifier(self, address: str, model: str = TARGET) -> Service:
        flags = ["--model", model, "--drain-seconds", "0", "--kv-memory-mib", "1"]
        service = Service("verifier", "verifier_service", address, flags, {})
        self._stack.callback(service.stop)
        return service

    def start_orchestrator(self, addresses: list[str]) -> None:
        flags = ["--verifier", ",".join(addresses), "--draft", "", "--verifier-patience-seconds", "20"]
        self.orchestrator = Service("orchestrator", "orchestrator", free_address(), flags, {})
        self._stack.callback(self.orchestrator.stop)
        self.orchestrator.wait_until_healthy(60)

    def home_of_the_only_session(self) -> int:
        counts = [load_of(verifier.address).sequence_count for verifier in self.verifiers]
        assert sorted(counts) == [0, 1], counts
        return counts.index(1)


@contextmanager
def group(*models: str) -> Iterator[Group]:
    with ExitStack() as stack:
        services = Group(stack)
        addresses = [free_address() for _ in models]
        for address, model in zip(addresses, models, strict=True):
            services.verifiers.append(services.start_verifier(address, model))
        for verifier in services.verifiers:
            verifier.wait_until_healthy(60)
        services.start_orchestrator(addresses)
        yield services


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_session_goes_on_at_the_other_verifier_with_the_same_text(end: signal.Signals) -> None:
    with group(TARGET, TARGET) as services, Client(services.orchestrator.address) as client:
        until_both_are_known(services, client)
        with client.chat(settings=SETTINGS) as chat:
            reply = chat.send("go")
            pieces = iter(reply)
            next(pieces)
            home = services.home_of_the_only_session()
            services.verifiers[home].process.send_signal(end)
            started = time.monotonic()
            next(pieces)
            assert time.monotonic() - started < 10, "it waited for the one that was gone"
            for _ in pieces:
                pass
            prompt_length = reply.result.prompt_token_count
            second = chat.send("on", Settings(max_token_count=20)).wait()
        other = services.verifiers[1 - home]
        assert load_of(other.address).sequence_count == 1
        # The second turn found the first one's tokens where the session had moved to.
        assert second.cached_token_count >= prompt_length + LENGTH - 1
        with client.chat(settings=SETTINGS) as undisturbed:
            assert undisturbed.send("go").wait().token_ids == reply.result.token_ids


def until_both_are_known(services: Group, client: Client) -> None:
    """New sessions go where the fewest are: two at once end up on two verifiers once both have been reached."""
    deadline = time.monotonic() + 30
    while True:
        with client.chat() as one, client.chat() as two:
            one.send("a", Settings(max_token_count=1)).wait()
            two.send("b", Settings(max_token_count=1)).wait()
            spread = [load_of(verifier.address).sequence_count for verifier in services.verifiers] == [1, 1]
            for chat in (one, two):
                client.stub.DeleteSession(orchestrator_pb2.DeleteSessionRequest(session_id=chat.session_id))
        while any(load_of(verifier.address).sequence_count for verifier in services.verifiers):
            time.sleep(0.02)
        if spread:
            return
        assert time.monotonic() < deadline, "the second verifier is never used"


def test_new_sessions_keep_away_from_a_verifier_that_is_gone() -> None:
    with group(TARGET, TARGET) as services, Client(services.orchestrator.address) as client:
        until_both_are_known(services, client)
        services.verifiers[0].process.kill()
        for index in range(4):
            prompt = [PROMPT[0] + index, *PROMPT]
            result = client.generate(prompt, Settings(max_token_count=20)).wait()
            assert result.token_ids == paper_tokens(prompt, 20)


def test_a_verifier_of_other_weights_is_never_used() -> None:
    """Which of the two is reached first says what the target is; the other one must stay without a session."""
    with group(TARGET, "arithmetic:ends=0&agreement=0.5") as services:
        with Client(services.orchestrator.address) as client:
            answers = {tuple(client.generate(PROMPT, Settings(max_token_count=40)).wait().token_ids) for _ in range(8)}
        assert len(answers) == 1
        assert "hosts something else" in services.orchestrator.log.read_text()
        assert sorted(load_of(verifier.address).step_count > 0 for verifier in services.verifiers) == [False, True]


def test_a_verifier_that_comes_back_with_other_weights_ends_the_turn_with_the_reason() -> None:
    with group(TARGET) as services, Client(services.orchestrator.address) as client:
        reply = client.generate(PROMPT, SETTINGS)
        pieces = iter(reply)
        next(pieces)
        old = services.verifiers[0]
        old.process.kill()
        old.process.wait()
        services.start_verifier(old.address, "arithmetic:ends=0&agreement=0.5").wait_until_healthy(60)
        with pytest.raises(PeerError) as caught:
            for _ in pieces:
                pass
        assert caught.value.reason == "WEIGHTS_MISMATCH"
        assert reply.result.token_ids == paper_tokens(PROMPT, LENGTH)[: len(reply.result.token_ids)]
