"""Sessions move to another verifier when theirs goes away, and only to one of the same weights."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from slipstream.client import Client, PeerError, Settings
from slipstream.v1 import orchestrator_pb2
from tests import tiny_models
from tests.system.conftest import first_verify, load_of, new_handle, paper_tokens, verify_one

PROMPT = [10, 20, 30, 40]
LENGTH = 1000
SETTINGS = Settings(max_token_count=LENGTH, draft_length=0)
"""Settings of a turn of five seconds. With n-grams it takes half a second, because its text repeats
itself."""
TARGET = "arithmetic:ends=0&forward_ms=5"
DEADLINE = 1.0


class Group:
    """An orchestrator without a draft, and the verifiers it shares its sessions between."""

    def __init__(self, stack: ExitStack, deadline: float) -> None:
        self._stack = stack
        self._deadline = deadline
        self.verifiers: list[Service] = []
        self.orchestrator: Service

    def start_verifier(self, address: str, model: str = TARGET) -> Service:
        flags = ["--model", model, "--drain-seconds", "0", "--kv-memory-mib", "1", "--dtype", "float32"]
        service = Service("verifier", "verifier_service", address, flags, {})
        self._stack.callback(service.stop)
        return service

    def start_orchestrator(self, addresses: list[str]) -> Service:
        flags = ["--verifier", ",".join(addresses), "--draft", "", "--verifier-patience-seconds", "120"]
        flags += ["--verifier-deadline-seconds", f"{self._deadline:g}", "--store", "memory"]
        orchestrator = Service("orchestrator", "orchestrator", free_address(), flags, {})
        self._stack.callback(orchestrator.stop)
        orchestrator.wait_until_healthy()
        return orchestrator

    def home_of_the_only_session(self) -> int:
        counts = [load_of(verifier.address).sequence_count for verifier in self.verifiers]
        assert sorted(counts) == [0, 1], counts
        return counts.index(1)


@contextmanager
def group(*models: str, deadline: float = DEADLINE) -> Iterator[Group]:
    with ExitStack() as stack:
        services = Group(stack, deadline)
        addresses = [free_address() for _ in models]
        for address, model in zip(addresses, models, strict=True):
            services.verifiers.append(services.start_verifier(address, model))
        for verifier in services.verifiers:
            verifier.wait_until_healthy()
        services.orchestrator = services.start_orchestrator(addresses)
        yield services


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.essential
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
            assert time.monotonic() - started < 60, "it waited for the one that was gone"
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


def test_sessions_move_away_from_a_verifier_that_is_stopped_and_come_back_to_it() -> None:
    """Each turn stands still for the deadline once, and no other one waits for it again."""
    prompts = [[10 + index, 20, 30] for index in range(8)]
    with group(TARGET, TARGET, deadline=4) as services, Client(services.orchestrator.address) as client:
        until_both_are_known(services, client)
        replies = [client.generate(prompt, SETTINGS) for prompt in prompts]
        pieces = [iter(reply) for reply in replies]
        for each in pieces:
            next(each)
        stopped, other = services.verifiers
        assert load_of(stopped.address).sequence_count == 4
        stopped.process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            for each in pieces:
                for _ in each:
                    pass
            while load_of(other.address).sequence_count > 1:  # the handles given back last are on their way
                assert time.monotonic() - started < 120
                time.sleep(0.05)
            late = client.generate(PROMPT, SETTINGS).wait()
            assert late.token_ids == paper_tokens(PROMPT, LENGTH)
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        assert [reply.result.token_ids for reply in replies] == [paper_tokens(each, LENGTH) for each in prompts]
        assert services.orchestrator.log.read_text().count("has stopped answering") == 1
        assert time.monotonic() - started < 120
        until_both_are_known(services, client)
        assert services.orchestrator.log.read_text().count("answers again") == 1


def test_a_queued_prompt_is_not_given_up_while_the_verifier_makes_steps() -> None:
    """It is the only one that its orchestrator asks for, so nothing comes to that for seconds:
    others have filled the queue."""
    with (
        group("arithmetic:ends=0&row_us=2000") as services,
        grpc.insecure_channel(services.verifiers[0].address) as channel,
        ThreadPoolExecutor() as threads,
    ):
        (verifier,) = services.verifiers
        long = [[index, *range(20, 220)] * 6 for index in range(10, 14)]
        items = [first_verify(handle=new_handle(), round=1, tail=prompt) for prompt in long]
        filling = [threads.submit(verify_one, channel, item) for item in items]
        while load_of(verifier.address).sequence_count < len(long):
            time.sleep(0.02)
        last = PROMPT * 500  # those with less to go come first
        with Client(services.orchestrator.address) as client:
            result = client.generate(last, Settings(max_token_count=2)).wait()
        assert result.token_ids == paper_tokens(last, 2)
        assert result.total_time > 6 * DEADLINE, "it has waited for long, or this shows nothing"
        assert all(not reply.result().HasField("error") for reply in filling)
        assert "has stopped answering" not in services.orchestrator.log.read_text()


def until_both_are_known(services: Group, client: Client) -> None:
    """New sessions go where the fewest are: two at once end up on two verifiers once both have been
    reached."""
    deadline = time.monotonic() + 120
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


def test_sessions_that_begin_alike_find_their_beginning_cached_and_still_spread() -> None:
    """Four system messages, four chats with each: without placement each message would be read by
    both verifiers."""
    with group(TARGET, TARGET) as services, ExitStack() as stack, Client(services.orchestrator.address) as client:
        until_both_are_known(services, client)
        read = {index: [0, 0] for index in range(4)}
        for _ in range(4):
            for index, tokens in read.items():
                chat = stack.enter_context(client.chat(system=f"{index}" * 1024, settings=Settings(max_token_count=1)))
                result = chat.send("hello").wait()
                tokens[0] += result.prompt_token_count - result.cached_token_count
                tokens[1] += 1
        messages = sum(tokens[0] for tokens in read.values()) / 1024
        assert messages < 6.5, f"{messages:.1f} messages were read, of which there are four"
        counts = [load_of(verifier.address).sequence_count for verifier in services.verifiers]
        assert sum(counts) == 16 and min(counts) >= 4, counts


def test_new_sessions_keep_away_from_a_verifier_that_is_gone() -> None:
    with group(TARGET, TARGET) as services, Client(services.orchestrator.address) as client:
        until_both_are_known(services, client)
        services.verifiers[0].process.kill()
        for index in range(4):
            prompt = [PROMPT[0] + index, *PROMPT]
            result = client.generate(prompt, Settings(max_token_count=20)).wait()
            assert result.token_ids == paper_tokens(prompt, 20)


def test_a_verifier_of_other_weights_is_never_used() -> None:
    """The verifier that is reached first sets the target. The other one must get no session."""
    with group(TARGET, "arithmetic:ends=0&agreement=0.5") as services:
        with Client(services.orchestrator.address) as client:
            answers = {tuple(client.generate(PROMPT, Settings(max_token_count=40)).wait().token_ids) for _ in range(8)}
        assert len(answers) == 1
        deadline = time.monotonic() + 60
        while "does not host the same" not in (log := services.orchestrator.log.read_text()):
            assert time.monotonic() < deadline, log
            time.sleep(0.05)
        assert sorted(load_of(verifier.address).step_count > 0 for verifier in services.verifiers) == [False, True]


def test_a_verifier_of_the_same_weights_and_another_config_is_refused_by_name(tmp_path: Path) -> None:
    """Nothing but the base of its rotary positions is another one."""
    model = tiny_models.save(tiny_models.build("llama"), tmp_path / "one")
    other = Path(shutil.copytree(model, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] *= 2
    (other / "config.json").write_text(json.dumps(config))
    with group(str(model), str(other)) as services, Client(services.orchestrator.address) as client:
        prompt, told = list(range(100, 140)), "is not used: other weights_fingerprint"
        answers = {tuple(client.generate(prompt, Settings(max_token_count=20)).wait().token_ids) for _ in range(4)}
        assert len(answers) == 1
        deadline = time.monotonic() + 60
        while told not in (log := services.orchestrator.log.read_text()):
            assert time.monotonic() < deadline, log
            time.sleep(0.05)
        refused = [
            each for each in services.verifiers if f"the verifier at {each.address} does not host the same" in log
        ]
        assert [load_of(each.address).sequence_count for each in refused] == [0]


def test_a_verifier_that_comes_back_with_other_weights_ends_the_turn_with_the_reason() -> None:
    with group(TARGET) as services, Client(services.orchestrator.address) as client:
        reply = client.generate(PROMPT, SETTINGS)
        pieces = iter(reply)
        next(pieces)
        old = services.verifiers[0]
        old.process.kill()
        old.process.wait()
        services.start_verifier(old.address, "arithmetic:ends=0&agreement=0.5").wait_until_healthy()
        with pytest.raises(PeerError) as caught:
            for _ in pieces:
                pass
        assert caught.value.reason == "WEIGHTS_MISMATCH"
        assert reply.result.token_ids == paper_tokens(PROMPT, LENGTH)[: len(reply.result.token_ids)]
