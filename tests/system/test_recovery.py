"""Services die in the middle of a turn; the text does not notice."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import grpc
import pytest

from orchestrator.peers.progress import LOOK_SHARE
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, PeerError, Result, Settings
from tests.either_client import until
from tests.system.conftest import PAPER_PAIR, paper_tokens, wait_for_health

PROMPT = [10, 20, 30, 40]
LENGTH = 400
SETTINGS = Settings(max_token_count=LENGTH, draft_length=4)
LONG = 1200
"""Tokens of turns of two seconds at least, to which something happens once all have begun."""
RUN = Settings(max_token_count=LENGTH, draft_length=0)
"""Settings of a turn that the target continues by itself."""
SLOW = PairSettings(
    target="arithmetic:ends=0&forward_ms=5",
    draft="arithmetic:ends=0&agreement=0.8&forward_ms=1",
    draft_flags=["--drain-seconds", "0"],
    target_flags=["--drain-seconds", "0"],
    orchestrator_flags=["--draft-deadline-seconds", "3", "--verifier-patience-seconds", "120"],
)


@pytest.fixture(scope="module")
def slow() -> Iterator[LocalServices]:
    with LocalServices(SLOW) as local:
        yield local


def disturbed(local: LocalServices, disturb: Callable[[], None], settings: Settings = SETTINGS) -> Result:
    """A turn during which ``disturb`` runs once the first text has arrived."""
    with Client(local.orchestrator_address) as client:
        reply = client.generate(PROMPT, settings)
        pieces = iter(reply)
        next(pieces)
        disturb()
        for _ in pieces:
            pass
        return reply.result


def until_the_draft_is_used(client: Client) -> None:
    deadline = time.monotonic() + 120
    while client.generate(PROMPT, SETTINGS).wait().draft_count == 0:
        assert time.monotonic() < deadline, "the draft is back and is not used"
        time.sleep(0.2)


@pytest.mark.essential
def test_a_draft_killed_in_mid_turn_costs_speed_and_nothing_else(slow: LocalServices) -> None:
    result = disturbed(slow, slow.services["draft"].process.kill)
    assert result.token_ids == paper_tokens(PROMPT, LENGTH)
    assert result.draft_count < result.round_count
    slow.start_draft().wait_until_healthy()
    with Client(slow.orchestrator_address) as client:
        until_the_draft_is_used(client)


def test_a_draft_that_hangs_holds_nothing_up(slow: LocalServices) -> None:
    draft = slow.services["draft"].process
    try:
        result = disturbed(slow, lambda: draft.send_signal(signal.SIGSTOP))
    finally:
        draft.send_signal(signal.SIGCONT)
    assert result.token_ids == paper_tokens(PROMPT, LENGTH)
    assert result.draft_count < result.round_count


def test_a_draft_that_hangs_under_many_sessions_is_asked_again_when_it_is_back(slow: LocalServices) -> None:
    draft, prompts = slow.services["draft"].process, [[10 + index, 20, 30] for index in range(8)]
    with Client(slow.orchestrator_address) as client:
        until_the_draft_is_used(client)  # it may have been left alone for what another test did to it
        replies = [client.generate(prompt, Settings(max_token_count=LONG, draft_length=4)) for prompt in prompts]
        pieces = [iter(reply) for reply in replies]
        for each in pieces:
            next(each)
        draft.send_signal(signal.SIGSTOP)
        try:
            for each in pieces:
                deque(each, maxlen=0)
        finally:
            draft.send_signal(signal.SIGCONT)
        results = [reply.result for reply in replies]
        assert [result.token_ids for result in results] == [paper_tokens(prompt, LONG) for prompt in prompts]
        assert any(result.draft_failure_count for result in results)
        until_the_draft_is_used(client)


@pytest.mark.essential
@pytest.mark.parametrize("settings", [SETTINGS, RUN], ids=["rounds", "a run"])
def test_a_verifier_killed_and_restarted_in_mid_turn_goes_on_where_it_was(
    slow: LocalServices, settings: Settings
) -> None:
    def restart() -> None:
        slow.services["verifier"].process.kill()
        slow.services["verifier"].process.wait()
        slow.start_verifier()

    result = disturbed(slow, restart, settings)
    assert result.token_ids == paper_tokens(PROMPT, LENGTH)


def test_a_verifier_is_unreachable_while_it_is_gone_or_hangs_and_reachable_again_after() -> None:
    """No turn asks anything of it meanwhile."""

    def until_it_is(client: Client, reachable: bool) -> None:
        until(lambda: client.server_info().verifier_reachable == reachable)

    with LocalServices(PAPER_PAIR) as local, Client(local.orchestrator_address) as client:
        until_it_is(client, True)
        verifier = local.services["verifier"].process
        verifier.send_signal(signal.SIGSTOP)
        until_it_is(client, False)
        verifier.send_signal(signal.SIGCONT)
        until_it_is(client, True)
        verifier.kill()
        verifier.wait()
        until_it_is(client, False)
        local.start_verifier().wait_until_healthy()
        until_it_is(client, True)
        assert client.server_info().draft_reachable


def test_a_verifier_that_stays_away_ends_the_turn_with_a_status_and_keeps_the_session() -> None:
    """Patience is longer here than a channel's pause between two attempts to connect, as it should
    be everywhere."""
    pair = PairSettings(target=PAPER_PAIR.target, draft="", orchestrator_flags=["--verifier-patience-seconds", "3"])
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        with client.chat(settings=Settings(max_token_count=5)) as chat:
            first = chat.send("one").wait()
            local.services["verifier"].stop()
            with pytest.raises(PeerError) as caught:
                chat.send("two").wait()
            assert caught.value.reason == "VERIFIER_LOST"
            local.start_verifier().wait_until_healthy()
            with grpc.insecure_channel(local.orchestrator_address) as channel:
                wait_for_health(channel)  # the orchestrator has found it again
            third = chat.send("three").wait()
        # The turn without an answer never happened, and what came before it is still there.
        assert third.prompt_token_count == first.prompt_token_count + first.generated_token_count + len(
            ["<|end|>", "<|start|>", "u", *"three", "<|end|>", "<|start|>", "a"]
        )


def stoppable(patience: float) -> LocalServices:
    """Return services with one verifier, which may be silent for five seconds and away for
    ``patience`` seconds."""
    flags = ["--verifier-deadline-seconds", "5", "--verifier-patience-seconds", f"{patience:g}"]
    return LocalServices(PairSettings("arithmetic:ends=0&forward_ms=5", "", orchestrator_flags=flags))


@pytest.mark.parametrize("settings", [SETTINGS, RUN], ids=["rounds", "a run"])
def test_the_only_verifier_stopped_and_woken_in_mid_turn_goes_on_where_it_was(settings: Settings) -> None:
    with stoppable(patience=120) as local:
        verifier = local.services["verifier"].process

        def told(what: str) -> int:
            return local.services["orchestrator"].log.read_text().count(what)

        def stop_for_long() -> None:
            verifier.send_signal(signal.SIGSTOP)
            with grpc.insecure_channel(local.orchestrator_address) as channel:
                wait_for_health(channel, serving=False)
            until(lambda: told("has stopped answering") > 0)
            verifier.send_signal(signal.SIGCONT)

        result = disturbed(local, stop_for_long, settings)
        assert result.token_ids == paper_tokens(PROMPT, LENGTH)
        assert told("has stopped answering") == told("answers again") == 1


def test_a_verifier_stopped_beyond_the_patience_ends_turns_and_is_found_when_it_wakes() -> None:
    with stoppable(patience=3) as local, Client(local.orchestrator_address) as client:
        verifier = local.services["verifier"].process
        with client.chat(settings=Settings(max_token_count=5)) as chat:
            chat.send("one").wait()
            verifier.send_signal(signal.SIGSTOP)
            try:
                seconds = []
                for text in ("two", "three"):
                    started = time.monotonic()
                    with pytest.raises(PeerError) as caught:
                        chat.send(text).wait()
                    assert caught.value.reason == "VERIFIER_LOST" and caught.value.retry_after
                    seconds.append(time.monotonic() - started)
                with grpc.insecure_channel(local.orchestrator_address) as channel:
                    wait_for_health(channel, serving=False, timeout=60)
            finally:
                verifier.send_signal(signal.SIGCONT)
            assert 2 * LOOK_SHARE * 5 + 3 <= seconds[0] < 60, "two looks of the deadline, then the patience"
            log = local.services["orchestrator"].log.read_text()
            assert log.count("has stopped answering") == 1, "the second turn has waited for the deadline again"
            with grpc.insecure_channel(local.orchestrator_address) as channel:
                wait_for_health(channel)
            asked = chat.send("four", Settings(max_token_count=40)).wait()
        with client.chat(settings=Settings(max_token_count=5)) as undisturbed:
            undisturbed.send("one").wait()
            assert undisturbed.send("four", Settings(max_token_count=40)).wait().token_ids == asked.token_ids
        assert client.generate(PROMPT, SETTINGS).wait().token_ids == paper_tokens(PROMPT, LENGTH)


def test_ended_leases_are_mended_by_stating_the_position_again() -> None:
    lease = ["--default-lease-seconds", "0.3", "--max-lease-seconds", "0.3"]
    pair = PairSettings(PAPER_PAIR.target, PAPER_PAIR.draft, target_flags=lease, draft_flags=lease)

    def talk(client: Client, pause: float) -> list[list[int]]:
        answers = []
        with client.chat(settings=Settings(max_token_count=30)) as chat:
            for text in ("a", "b", "c"):
                answers.append(chat.send(text).wait().token_ids)
                time.sleep(pause)
        return answers

    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        assert talk(client, 2.0) == talk(client, 0.0)


def test_a_lease_does_not_end_under_a_running_round() -> None:
    flags = ["--default-lease-seconds", "0.2", "--max-lease-seconds", "0.2"]
    pair = PairSettings("arithmetic:ends=0&forward_ms=1500", "", target_flags=flags)
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        assert client.generate(PROMPT, Settings(max_token_count=2)).wait().token_ids == paper_tokens(PROMPT, 2)
        assert "lease" not in local.services["orchestrator"].log.read_text()


def test_more_sessions_than_pages_take_turns_and_say_the_same() -> None:
    """Four pages of 16 for each service: idle sequences lose theirs, busy ones wait."""
    page_bytes = 8 * 16
    tight = ["--kv-memory-mib", str(8 * page_bytes / 2**20), "--default-lease-seconds", "60"]
    pair = PairSettings(PAPER_PAIR.target, PAPER_PAIR.draft, target_flags=tight, draft_flags=tight)
    got: dict[int, list[int]] = {}
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        assert client.server_info().target.context_length == 8 * 16

        def work(index: int) -> None:
            got[index] = client.generate([30 + index] * 40, Settings(max_token_count=40)).wait().token_ids

        threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == {index: paper_tokens([30 + index] * 40, 40) for index in range(6)}
