"""Acceptance by task, from requests to `slipstream drift`: over restarts and takeovers, for
operators, and for hostile tags."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from proving.chaos.clock import ClockOfDay, can_be_set
from slipstream.cli.local import LocalServices, free_address
from slipstream.client import Client, PeerError, Settings
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.v1 import orchestrator_pb2_grpc
from tests import commands
from tests.gateway_process import GatewayProcess, gateway_process
from tests.system.conftest import PAPER_PAIR, paper_tokens
from tests.system.test_access import TOKENS, access_file, client_of, key_set

HOUR = 3600
PROMPT = [10, 20, 30]
SETTINGS = Settings(max_token_count=200, draft_length=4)
WRONG_DRAFT = "arithmetic:ends=0&agreement=0.3"
NEXT_TARGET = "arithmetic:ends=0&agreement=0.9"


def asked(task: str | None, count: int = 200) -> Settings:
    return dataclasses.replace(SETTINGS, task=task, max_token_count=count)


def talk(client: Client, task: str, turns: int = 10) -> None:
    replies = [client.generate([10 + index, 20, 30], asked(task)) for index in range(turns)]
    for reply in replies:
        reply.wait()


def counted(client: Client) -> dict[str, tuple[int, int]]:
    """Turns and draft tokens of each task."""
    found: dict[str, tuple[int, int]] = {}
    for hour in client.acceptance_history().hours:
        turns, drafted = found.get(hour.task, (0, 0))
        found[hour.task] = turns + hour.turn_count, drafted + hour.draft_token_count
    return found


def drift(local: LocalServices, *flags: str, **environment: str) -> tuple[int, str]:
    done = commands.run("drift", "--address", local.orchestrator_address, *flags, **environment)
    return done.returncode, done.stdout + done.stderr


def metrics_of(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    store = tmp_path_factory.mktemp("store") / "sessions.db"
    flags = ["--metrics-address", free_address()]
    with LocalServices(dataclasses.replace(PAPER_PAIR, store=str(store), orchestrator_flags=flags)) as local:
        yield local


@pytest.fixture
def client(services: LocalServices) -> Iterator[Client]:
    with Client(services.orchestrator_address) as connected:
        yield connected


@pytest.fixture(scope="module")
def gateway(services: LocalServices) -> Iterator[GatewayProcess]:
    with gateway_process(services.orchestrator_address) as running:
        yield running


@pytest.mark.essential
@pytest.mark.skipif(not can_be_set(), reason="there is no C compiler to make a clock with that can be set")
def test_a_worse_draft_is_found_at_its_hour_and_only_where_it_is_used(tmp_path: Path) -> None:
    clock = ClockOfDay(tmp_path)
    settings = dataclasses.replace(PAPER_PAIR, store=str(tmp_path / "sessions.db"), environment=clock.environment)
    with LocalServices(settings) as local, Client(local.orchestrator_address) as client:
        for hour in range(-8, -2):
            clock.set(hour * HOUR)
            talk(client, "sums")
            client.acceptance_history()  # which writes what was counted in this hour
        assert drift(local) == (0, drift(local)[1]) and "too few" not in drift(local)[1]
        local.settings = dataclasses.replace(settings, draft=WRONG_DRAFT)
        local.start_draft().wait_until_healthy()
        clock.set(-2 * HOUR)
        before = len(client.acceptance_history().hours)
        limit = time.monotonic() + 60
        while len(client.acceptance_history().hours) == before:  # until the orchestrator asks the new draft
            assert time.monotonic() < limit
            talk(client, "sums", 1)
        talk(client, "sums", 20)
        clock.set(0)
        status, told = drift(local, "--json")
        (finding,) = json.loads(told)["findings"]
        assert (status, finding["task"], finding["state"], finding["cause"]) == (1, "sums", "worse", "draft")
        assert finding["last_week"]["acceptance"] - finding["now"]["acceptance"] > 0.2
        since = time.strptime(finding["since"], "%Y-%m-%dT%H:%M:%SZ")
        assert abs(time.time() - 2 * HOUR - (time.mktime(since) - time.timezone)) <= 2 * HOUR
        status, told = drift(local)
        assert status == 1 and "what to do: The draft changed at that time" in told


@pytest.mark.essential
def test_a_tag_changes_no_text_and_is_laid_in_layers(client: Client) -> None:
    assert list(client.generate(PROMPT, asked("layers/one", 50)).wait().token_ids) == paper_tokens(PROMPT, 50)
    with client.chat(settings=asked("layers/session")) as chat:
        chat.send("one").wait()
        chat.send("two", Settings(task="layers/message")).wait()
        chat.send("three", Settings(task="")).wait()
        chat.send("four", Settings(cleared=["task"])).wait()
        forked = client.fork_session(chat.session_id)
    forked.send("five").wait()
    got = counted(client)
    assert [got[f"layers/{name}"][0] for name in ("one", "session", "message")] == [1, 2, 1]
    assert got[""][0] == 2
    exported = client.export_session(forked.session_id)
    assert exported["settings"]["task"] == "layers/session"


@pytest.mark.parametrize("task", ["two words", "x" * 65, "é", "a\nb"])
def test_a_tag_that_cannot_be_one_is_refused_by_its_field(client: Client, task: str) -> None:
    with pytest.raises(PeerError) as refused:
        client.generate(PROMPT, asked(task)).wait()
    assert [violation.field for violation in refused.value.violations] == ["settings.task"]
    with pytest.raises(PeerError, match="task"):
        client.create_session(settings=Settings(task=task))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40}),
    ],
)
def test_each_http_api_has_the_tag_in_its_metadata(
    gateway: GatewayProcess, client: Client, path: str, body: dict[str, Any]
) -> None:
    model = gateway.send("/v1/models").body["data"][0]["id"]
    length = {} if path != "/v1/completions" else {"max_tokens": 40}
    length |= {"max_output_tokens": 40} if path == "/v1/responses" else {}
    task = f"http{path.replace('/', '.')}"
    request = {"model": model, "speculation": 4, **body, **length}
    answer = gateway.send(path, {**request, "metadata": {"task": task}})
    assert answer.status == 200, answer.body
    assert counted(client)[task][0] == 1
    wrong = gateway.send(path, {**request, "metadata": {"task": "two words"}})
    assert wrong.status == 400 and wrong.error["param"] == "metadata.task", wrong.body
    assert "A-Z" in wrong.error["message"]


def test_a_flood_of_tags_grows_neither_the_history_nor_the_metrics(services: LocalServices, client: Client) -> None:
    before = counted(client)
    for first in range(0, 300, 50):
        replies = [client.generate(PROMPT, asked(f"flood/{first + index}", 12)) for index in range(50)]
        for reply in replies:
            reply.wait()
    got = counted(client)
    turns = sum(count for count, _ in got.values()) - sum(count for count, _ in before.values())
    assert len(got) <= 33 * 2 and got["other"][0] >= 300 - 64 and turns == 300  # in two hours, if one has just begun
    shown = metrics_of(services.settings.orchestrator_flags[1])
    labels = set(re.findall(r'slipstream_task_draft_tokens_total\{draft="[^"]*",task="([^"]*)"\}', shown))
    assert "other" in labels and len(labels) <= 33


def test_the_history_and_the_tag_of_a_turn_outlive_the_process(tmp_path: Path) -> None:
    flags = ["--session-lease-seconds", "2", "--drain-seconds", "0"]
    settings = dataclasses.replace(
        PAPER_PAIR,
        target="arithmetic:ends=0&forward_ms=5",
        store=str(tmp_path / "sessions.db"),
        orchestrator_flags=flags,
    )
    with LocalServices(settings) as local:
        with Client(local.orchestrator_address) as client:
            talk(client, "before", 2)
            before = counted(client)
            assert before["before"][0] == 2
            session = client.create_session(settings=asked("taken/over", 1500))
            reply = session.send("go on")
            pieces = iter(reply)
            next(pieces)  # its first tokens are there
            local.services["orchestrator"].process.send_signal(signal.SIGKILL)
            local.services["orchestrator"].process.wait()
            local.start_orchestrator().wait_until_healthy()
            assert sum(1 for _ in pieces) and reply.result.generated_token_count == 1500
            got = counted(client)
        assert got["before"] == before["before"], "what was written stays"
        assert got["taken/over"][0] == 1 and got["taken/over"][1] > 0
        local.services["orchestrator"].stop()  # writes what a minute has not
        local.start_orchestrator().wait_until_healthy()
        with Client(local.orchestrator_address) as client:
            talk(client, "after", 1)
            assert counted(client)["taken/over"] == got["taken/over"]


@pytest.mark.essential
def test_a_new_target_is_told_at_once(tmp_path: Path) -> None:
    flags = ["--metrics-address", free_address()]
    settings = dataclasses.replace(PAPER_PAIR, store=str(tmp_path / "sessions.db"), orchestrator_flags=flags)
    with LocalServices(settings) as local:
        assert "slipstream_target_changed" not in metrics_of(flags[1])
        began = time.time()
        local.services["orchestrator"].stop()
        local.settings = dataclasses.replace(settings, target=NEXT_TARGET)
        local.start_verifier().wait_until_healthy()
        local.start_orchestrator().wait_until_healthy()
        log = local.services["orchestrator"].log.read_text()
        assert "the target has changed" in log and "agreement=0.9" in log
        (changed,) = re.findall(r"^slipstream_target_changed_timestamp_seconds (\S+)$", metrics_of(flags[1]), re.M)
        assert began - 1 <= float(changed) <= time.time() + 1
        status, told = drift(local)
        assert status == 0 and "target: since" in told and "no draft tokens" in told
        local.services["orchestrator"].stop()
        local.start_orchestrator().wait_until_healthy()
        assert "the target has changed" not in local.services["orchestrator"].log.read_text(), "it is told once"
        assert f"slipstream_target_changed_timestamp_seconds {changed}" in metrics_of(flags[1]), "and kept"


def test_only_an_operator_is_told_what_all_callers_do(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(json.dumps(key_set()))
    flags = ["--access", str(access_file(tmp_path))]
    with LocalServices(dataclasses.replace(PAPER_PAIR, orchestrator_flags=flags)) as local:
        with client_of(local, TOKENS["alice"][0]) as alice, client_of(local, TOKENS["watcher"][0]) as watcher:
            talk(alice, "sums", 1)
            with pytest.raises(PeerError) as refused:
                alice.acceptance_history()
            assert refused.value.reason == "OPERATORS_ONLY"
            assert counted(watcher)["sums"][0] == 1
        assert drift(local, SLIPSTREAM_TOKEN=TOKENS["watcher"][0])[0] == 0
        status, told = drift(local, SLIPSTREAM_TOKEN=TOKENS["alice"][0])
        assert status == 2 and "operator" in told


def test_drift_says_with_its_status_that_it_could_not_ask(client: Client, services: LocalServices) -> None:
    done = commands.run("drift", "--address", free_address())
    assert done.returncode == 2 and "is an orchestrator running there?" in done.stderr
    with ExitStack() as stack:
        stub: orchestrator_pb2_grpc.OrchestratorServiceStub = client.stub
        for count in (-1, 841):
            call = stub.GetAcceptanceHistory(pb.GetAcceptanceHistoryRequest(hour_count=count))
            stack.callback(call.cancel)
            with pytest.raises(Exception, match="hour_count"):
                list(call)
