"""Services behind one host name, which come and go with its addresses while turns run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from orchestrator.processes.peer_discovery import Peers
from orchestrator.processes.settings import OrchestratorSettings
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.terms import LEAD, RoundTerms
from orchestrator.speculation.settings import SpeculationSettings
from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from slipstream.rpc.connector import PLAINTEXT
from slipstream.sampling.rule import SamplingRule
from tests.scripted_peers import new_note
from tests.system.conftest import paper_tokens
from tests.unit.test_host_names import Resolver

TERMS = RoundTerms(SamplingRule(), SpeculationSettings(4))
VERIFYING, DRAFTING = (
    ("verifier", "verifier_service", "arithmetic:ends=0"),
    ("draft", "draft_service", "arithmetic:ends=0"),
)
PROMPT = [10, 20, 30, 40]


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """Of two verifiers and two drafts, each on 127.0.0.2 and on 127.0.0.3."""
    with ExitStack() as stack:
        services, ports = [], []
        for role, module, model in (VERIFYING, DRAFTING):
            ports.append(int(free_address().rpartition(":")[2]))
            for host in ("127.0.0.2", "127.0.0.3"):
                flags = ["--model", model, "--drain-seconds", "0", "--kv-memory-mib", "1"]
                services.append(Service(role, module, f"{host}:{ports[-1]}", flags, {}))
                stack.callback(services[-1].stop)
        for service in services:
            service.wait_until_healthy()
        yield ports[0], ports[1]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - these things tell no event loop
            await asyncio.sleep(0.05)


class Talk:
    """A session, round by round."""

    def __init__(self, rounds: Rounds, name: str) -> None:
        self._rounds = rounds
        self.session: SessionRounds = rounds.open(name)
        self.tokens = list(PROMPT)
        rounds.begin_turn(self.session, 0, recompute=False)

    async def round(self) -> None:
        self.tokens += (await self._rounds.run(self.session, self.tokens, TERMS, 100, new_note())).tokens

    @property
    def homes(self) -> tuple[str | None, str | None]:
        return self.session.verifier.address, self.session.drafting.sequence.address


class OverError(Exception):
    """Ends the tasks that follow names, which never end by themselves."""


@asynccontextmanager
async def connected(peers: Peers) -> AsyncIterator[Rounds]:
    """Rounds over them."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield (await peers.connect(tasks)).rounds
            raise OverError
    except* OverError:
        await peers.close()


async def test_sessions_follow_the_addresses_of_a_name_and_say_the_same(ports: tuple[int, int]) -> None:
    resolver = Resolver(verifiers=["127.0.0.2", "127.0.0.9"], drafts=["127.0.0.2", "127.0.0.3"])  # .9: no listener
    flags = ["--verifier", f"dns:verifiers:{ports[0]}", "--draft", f"drafts:{ports[1]}"]
    settings = OrchestratorSettings(_cli_parse_args=[*flags, "--resolve-seconds", "0.1"])
    peers = Peers(settings, PLAINTEXT, resolver)
    async with connected(peers) as rounds:
        first, second = Talk(rounds, "first"), Talk(rounds, "second")
        await until(lambda: sum(side.is_well for side in peers.drafts.sides) == 2)
        for talk in (first, second):
            await talk.round()
        assert first.homes[0] == second.homes[0] == f"127.0.0.2:{ports[0]}"
        assert {first.homes[1], second.homes[1]} == {f"127.0.0.2:{ports[1]}", f"127.0.0.3:{ports[1]}"}

        resolver.addresses |= {"verifiers": ["127.0.0.2", "127.0.0.3"], "drafts": ["127.0.0.3", "127.0.0.9"]}
        await until(lambda: f"127.0.0.3:{ports[0]}" in peers.verifiers._admitted)
        third = Talk(rounds, "third")
        await third.round()
        assert third.homes[0] == f"127.0.0.3:{ports[0]}", "it has come under live traffic"
        await until(lambda: f"127.0.0.2:{ports[1]}" in peers.drafts._retired)
        for talk in (first, second, third):
            await talk.round()
            assert talk.homes[1] == f"127.0.0.3:{ports[1]}"

        resolver.addresses["verifiers"] = ["127.0.0.3", "127.0.0.4"]
        await until(lambda: f"127.0.0.2:{ports[0]}" in peers.verifiers._retired)
        for talk in (first, second, third):
            for _ in range(LEAD):  # what has come from a verifier is taken before it is left
                await talk.round()
                if talk.homes[0] == f"127.0.0.3:{ports[0]}":
                    break
            assert talk.homes[0] == f"127.0.0.3:{ports[0]}"
            assert talk.tokens == PROMPT + paper_tokens(PROMPT, len(talk.tokens) - len(PROMPT))
        await until(lambda: all(peer.address != f"127.0.0.2:{port}" for port in ports for peer in peers.all))
