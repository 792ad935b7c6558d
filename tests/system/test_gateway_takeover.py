"""A gateway in front of two orchestrators that share a PostgreSQL: the end of one of them costs a
streamed answer some time, and none of its text."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from slipstream.client import Client, Settings
from tests.gateway_process import gateway_process
from tests.postgresql import running_server

TARGET = "arithmetic:ends=0&forward_ms=10"
COUNT = 200
FLAGS = ["--draft", "", "--drain-seconds", "0", "--session-lease-seconds", "2"]
QUESTION: Any = [{"role": "user", "content": "hello"}]


class Orchestrators:
    """Two orchestrators of one store, by address."""

    def __init__(self, stack: ExitStack, environment: dict[str, str]) -> None:
        self._stack = stack
        self._environment = environment
        self._verifier = self._start("verifier", "verifier_service", free_address(), ["--model", TARGET])
        self._flags = [*FLAGS, "--verifier", self._verifier.address, "--store", "postgresql://?service=slipstream"]
        self.running: dict[str, Service] = {}
        self.revive(free_address(), free_address())

    def revive(self, *addresses: str) -> None:
        """Start the orchestrators that do not run."""
        for address in addresses or self.running:
            if address not in self.running or self.running[address].process.poll() is not None:
                self.running[address] = self._start("orchestrator", "orchestrator", address, self._flags)
        for service in self.running.values():
            service.wait_until_healthy()

    def _start(self, name: str, module: str, address: str, flags: list[str]) -> Service:
        service = Service(name, module, address, flags, self._environment)
        self._stack.callback(service.stop)
        return service

    @property
    def target(self) -> str:
        """Both addresses, as gRPC takes them."""
        return f"ipv4:{','.join(self.running)}"

    def kill_the_busy_one(self) -> None:
        """Kill the orchestrator that runs a turn. The turn does not end while this looks."""
        self._verifier.process.send_signal(signal.SIGSTOP)
        try:
            for address, service in self.running.items():
                with Client(address) as client:
                    busy = sum(process.running_turn_count for process in client.status().processes)
                if busy:
                    service.process.send_signal(signal.SIGKILL)
                    service.process.wait()
                    return
            raise AssertionError("no orchestrator runs a turn")
        finally:
            self._verifier.process.send_signal(signal.SIGCONT)

    def generated(self) -> list[int]:
        """Return how many tokens each orchestrator has generated."""
        counts = []
        for address in self.running:
            with Client(address) as client:
                counts += [process.generated_token_count for process in client.status().processes]
        return counts


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrators]:
    with running_server() as server, ExitStack() as stack:
        address = urlsplit(server.new_database())
        service = (
            tmp_path_factory.mktemp("store") / "pg_service.conf"
        )  # as components/postgresql of deploy/ names the store
        service.write_text(
            f"[slipstream]\nhost={address.hostname}\nport={address.port}\nuser={address.username}\n"
            f"dbname={address.path.removeprefix('/')}\n"
        )
        yield Orchestrators(stack, {"PGSERVICEFILE": str(service)})


@pytest.fixture
def orchestrators(both: Orchestrators) -> Orchestrators:
    both.revive()
    return both


@pytest.mark.essential
def test_a_streamed_answer_goes_on_at_the_other_orchestrator(orchestrators: Orchestrators) -> None:
    with gateway_process(orchestrators.target) as gateway, ExitStack() as stack:
        base = f"http://{gateway.address}/v1"
        api = stack.enter_context(openai.OpenAI(base_url=base, api_key="unused", max_retries=0))
        ask: Any = {"model": api.models.list().data[0].id, "messages": QUESTION, "max_tokens": COUNT, "seed": 3}
        ask["extra_body"] = {"speculation": "off"}  # or it ends before the test looks
        whole = api.chat.completions.create(**ask)
        chunks = api.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        text, killed, usage = "", False, None
        for chunk in chunks:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
            if len(text) > 5 and not killed:
                orchestrators.kill_the_busy_one()
                killed = True
        assert killed
        assert text == whole.choices[0].message.content
        assert usage is not None and usage.completion_tokens == COUNT
        assert api.chat.completions.create(**ask).choices[0].message.content == text


def test_a_response_goes_on_at_any_gateway(orchestrators: Orchestrators) -> None:
    with ExitStack() as stack:
        apis = []
        for _ in range(2):
            gateway = stack.enter_context(gateway_process(orchestrators.target))
            base = f"http://{gateway.address}/v1"
            apis.append(stack.enter_context(openai.OpenAI(base_url=base, api_key="unused", max_retries=0)))
        ask: Any = {"model": apis[0].models.list().data[0].id, "max_output_tokens": 4}
        last = apis[0].responses.create(**ask, input="hello")
        for api in (apis[1], apis[0], apis[1]):  # each of them asks both orchestrators in turn
            before, last = last, api.responses.create(**ask, input="and now", previous_response_id=last.id)
            assert last.previous_response_id == before.id
            assert api.responses.retrieve(before.id).output_text == before.output_text
        assert last.usage is not None
        assert last.usage.input_tokens > 3 * len("and now"), "the model has read all that came before"


def test_a_clients_calls_go_to_both_orchestrators(orchestrators: Orchestrators) -> None:
    before = orchestrators.generated()
    with Client(orchestrators.target) as client:
        for _ in range(20):  # the first calls may come before the second connection
            client.generate([5, 6, 7], Settings(max_token_count=2)).wait()
            if all(now > then for now, then in zip(orchestrators.generated(), before, strict=True)):
                return
    raise AssertionError(orchestrators.generated())


def test_a_sessions_turn_goes_on_at_the_other_orchestrator(orchestrators: Orchestrators) -> None:
    settings = Settings(max_token_count=COUNT, seed=3, draft_length=0)
    with Client(orchestrators.target) as client:
        with client.chat() as undisturbed:
            whole = undisturbed.send("hello", settings).wait()
        with client.chat() as chat:
            reply = chat.send("hello", settings)
            text, killed = "", False
            for piece in reply:
                text += piece
                if len(text) > 5 and not killed:
                    orchestrators.kill_the_busy_one()
                    killed = True
            assert killed
            assert text == whole.text
            assert chat.send("and now", settings).wait().generated_token_count == COUNT
