"""Turns of a session that asks two drafts at once, over real sockets: where one is wrong, the other
may be right, and one that is dead costs nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import pytest

from orchestrator.peers.draft_peer import DraftPeer
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifiers import Verifiers
from orchestrator.rounds.drafting import DraftSide
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.verification import VerifierSide
from orchestrator.speculation.proposal import Source
from slipstream.engine.arithmetic import ArithmeticBackend, ArithmeticSettings
from slipstream.engine.engine import Engine
from slipstream.engine.host import HostLimits
from tests.contract.test_handles import Services
from tests.contract.test_hint_relay import FIXED, INFO
from tests.scripted_peers import new_note
from tests.system.conftest import paper_tokens

LENGTH = 120
EVEN, ODD = [10, 20, 30, 40], [11, 20, 30, 40]


def load(half: int) -> Engine:
    """A draft that knows texts with an even, or an odd, first token."""
    return Engine(ArithmeticBackend(ArithmeticSettings(ends=0, half=half)), kv_memory_mib=1)


class Served:
    """Rounds over a verifier and two drafts."""

    def __init__(self) -> None:
        self.services = [Services(HostLimits(sweep_seconds=0.02)) for _ in range(2)]

    async def start(self) -> None:
        for half, services in enumerate(self.services):
            await services.start(max_draft_length=32, load_draft=partial(load, half), draft_weights=f"{half}")
        self.verifier = VerifierPeer(self.services[0].address)
        self.drafts = [DraftPeer(services.address) for services in self.services]
        self.verifier.info = INFO
        for half, draft in enumerate(self.drafts):
            draft.info = replace(INFO, weights_fingerprint=f"{half}")
        self.peers: list[VerifierPeer | DraftPeer] = [self.verifier, *self.drafts]
        for peer in self.peers:
            peer._health.serving = True
        verifiers = Verifiers([self.verifier])
        verifiers.admit(self.verifier)
        self.verifying = VerifierSide(verifiers, INFO, lease_seconds=60, patience_seconds=5)
        self.sides = [DraftSide(draft, INFO, lease_seconds=60, deadline_seconds=1) for draft in self.drafts]

    def rounds(self, *halves: int) -> Rounds:
        """Rounds whose sessions ask these drafts at once."""
        drafts = Drafts([self.sides[half] for half in halves])
        return Rounds(self.verifying, drafts, INFO, drafts_per_session=len(halves))

    async def accepted(self, rounds: Rounds, prompt: list[int]) -> dict[str, int]:
        """Accepted tokens of a turn by the draft that guessed them. The text is the target's."""
        session, tokens, counts = rounds.open(f"s{prompt[0]}"), [*prompt], dict.fromkeys(("0", "1"), 0)
        rounds.begin_turn(session, 0, recompute=False)
        while room := LENGTH - (len(tokens) - len(prompt)):
            result = await rounds.run(session, tokens, FIXED, room, new_note())
            tokens += result.tokens
            if result.source is Source.DRAFT:
                counts[result.draft] += result.accepted_count
        rounds.end_turn(session, LENGTH)
        rounds.release(session)
        assert tokens == [*prompt, *paper_tokens(prompt, LENGTH)]
        return counts

    async def close(self) -> None:
        for peer in self.peers:
            await peer.close()
        for services in self.services:
            await services.stop()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.start()
    yield served
    await served.close()


async def test_two_drafts_that_know_different_texts_beat_each_alone(served: Served) -> None:
    together = [await served.accepted(served.rounds(0, 1), prompt) for prompt in (EVEN, ODD)]
    assert together[0]["0"] > LENGTH // 4 and together[1]["1"] > LENGTH // 4
    assert together[0]["1"] == together[1]["0"] == 0
    alone = [[await served.accepted(served.rounds(half), prompt) for prompt in (EVEN, ODD)] for half in (0, 1)]
    for half in (0, 1):
        assert sum(sum(counts.values()) for counts in alone[half]) < 0.75 * sum(sum(c.values()) for c in together)
    assert [side.figures.turn_count for side in served.sides] == [4, 4]
    for side in served.sides:
        assert side.figures.acceptance.numerator == side.accepted_count > LENGTH // 2


async def test_a_dead_one_of_two_costs_nothing(served: Served) -> None:
    served.drafts[1]._health.serving = False
    counts = await served.accepted(served.rounds(0, 1), EVEN)
    assert counts["0"] > LENGTH // 4
    assert served.sides[1].session_count == 0 and not served.sides[1].fallbacks
