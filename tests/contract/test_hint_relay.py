"""Turns over real sockets whose draft sends hints: what the target chooses, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from orchestrator.peers.draft_peer import DraftPeer
from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifiers import Verifiers
from orchestrator.rounds.drafting import DraftSide
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.result import Origin, RoundResult
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.terms import RoundTerms
from orchestrator.rounds.verification import VerifierSide
from orchestrator.speculation.proposal import Source
from orchestrator.speculation.settings import SpeculationSettings
from slipstream.engine.host import HostLimits
from slipstream.rpc.status import StreamLostError
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import SamplingDefaults, SamplingRule
from tests.contract.test_handles import Services
from tests.scripted_peers import new_note
from tests.system.conftest import paper_tokens

INFO = ModelInfo("m", "A", 259, "", 4096, (2,), SamplingDefaults(), "float32", "cpu", 32, "", 2)
FIXED = RoundTerms(SamplingRule(), SpeculationSettings(4, source=Source.DRAFT))
PROMPT, LENGTH = (10, 20, 30, 40), 120
TEXT = [*PROMPT, *paper_tokens([*PROMPT], LENGTH)]


class Served:
    """Rounds over a verifier and a draft."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.verifier, self.draft = VerifierPeer(services.address), DraftPeer(services.address)
        for peer in (self.verifier, self.draft):
            peer.info = INFO
            peer._health.serving = True
        verifiers = Verifiers([self.verifier])
        verifiers.admit(self.verifier)
        verifying = VerifierSide(verifiers, INFO, lease_seconds=60, patience_seconds=5)
        self.side = DraftSide(self.draft, INFO, lease_seconds=60, deadline_seconds=1)
        self.rounds = Rounds(verifying, Drafts([self.side]), INFO)
        self.session = self.rounds.open("s")

    async def turn(self, terms: RoundTerms, tokens: Sequence[int] = PROMPT, shared: int = 0) -> list[RoundResult]:
        """Run a turn to its end at `LENGTH` new tokens."""
        results, all_tokens = [], [*tokens]
        self.rounds.begin_turn(self.session, shared, recompute=False)
        room = LENGTH
        while room:
            result = await self.rounds.run(self.session, all_tokens, terms, room, new_note())
            all_tokens += result.tokens
            room -= len(result.tokens)
            results.append(result)
        self.rounds.end_turn(self.session, LENGTH)
        assert all_tokens == [*tokens, *paper_tokens([*tokens], LENGTH)]
        return results

    async def close(self) -> None:
        self.rounds.release(self.session)
        await self.verifier.close()
        await self.draft.close()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    services = Services(HostLimits(sweep_seconds=0.02))
    await services.start(max_draft_length=32)
    served = Served(services)
    yield served
    await served.close()
    async with asyncio.timeout(60):  # else a handle is left open
        for host in (services.verifier, services.draft):
            while host.load.sequence_count:  # noqa: ASYNC110 - its thread tells no event loop
                await asyncio.sleep(0.01)
    await services.stop()


async def test_the_target_accepts_what_a_draft_that_is_right_sends(served: Served) -> None:
    results = await served.turn(FIXED)
    drafted = [result for result in results if result.source is Source.DRAFT]
    assert drafted and all(1 <= result.proposal_length <= 4 for result in drafted)
    assert {origin for result in drafted for origin in result.origins} == {Origin.DRAFT, Origin.BONUS}
    assert served.side.accepted_count == served.side.verified_count > LENGTH // 4
    assert not served.draft.faults.counts and not served.verifier.faults.counts
    assert any(isinstance(timing, PeerTiming) for result in results for timing in result.drafted)


async def test_the_next_turn_begins_where_the_last_one_ended(served: Served) -> None:
    await served.turn(FIXED)
    handle = served.session.drafting.sequence.handle
    results = await served.turn(FIXED, [*TEXT, 50, 60], len(TEXT))
    assert served.session.drafting.sequence.handle == handle
    assert any(result.source is Source.DRAFT for result in results)
    assert served.services.draft.load.sequence_count == 1


async def test_log_probabilities_come_with_their_tokens(served: Served) -> None:
    terms = RoundTerms(FIXED.rule, FIXED.speculation, LogprobRequest(2, prompt=True))
    results = await served.turn(terms)
    for result in results:
        assert [entry.token for entry in result.logprobs] == [*result.tokens]
    assert [entry.token for entry in results[0].prompt_logprobs] == [*PROMPT[1:]]
    assert any(result.source is Source.DRAFT for result in results)


async def test_a_turn_goes_on_beside_a_draft_that_forgets_its_sequences(served: Served) -> None:
    forgotten: list[str] = []
    forgetting = asyncio.create_task(_forget(served, forgotten))
    results = await served.turn(FIXED)
    forgetting.cancel()
    assert forgotten and any(result.source is Source.DRAFT for result in results)
    assert not any(result.draft_failed for result in results)


async def _forget(served: Served, forgotten: list[str]) -> None:
    """Close all sequences of the draft after each hint: a draft that forgets before it has sent one
    is left alone."""
    draft, heard = served.services.draft, served.side._answered_at
    while True:
        await asyncio.sleep(0)
        if served.side._answered_at != heard:
            heard = served.side._answered_at
            for name in [*draft._sequences]:
                forgotten.append(name)
                draft.close_handle(name)


async def test_a_draft_whose_stream_is_lost_is_asked_again_after_a_pause(served: Served) -> None:
    await served.turn(FIXED)
    served.draft._draft_stream.abandon(StreamLostError("gone"))
    asyncio.get_running_loop().call_later(0.01, served.draft._draft_stream.abandon, StreamLostError("gone"))
    await served.turn(FIXED, [*TEXT, 50], len(TEXT))
    results: list[RoundResult] = []
    async with asyncio.timeout(60):
        while not any(result.source is Source.DRAFT for result in results):
            await asyncio.sleep(0.1)
            results = await served.turn(FIXED, [*TEXT, 50], len(TEXT))
    assert served.side.is_well
