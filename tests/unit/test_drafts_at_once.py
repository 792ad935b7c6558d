"""Two drafts of one session: each is told its price, and each gets what its own hints brought."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.run_parts import Part, Step
from orchestrator.proposers.draft import DraftProposer
from orchestrator.proposers.listed import proposers_of_session
from orchestrator.rounds.draft_request import draftings_of
from orchestrator.rounds.drafts import Drafts
from orchestrator.speculation.proposal import Source
from slipstream.wire.v1 import draft_pb2
from tests.scripted_peers import MODEL, Draft, side_of
from tests.unit.test_draft_proposer import ADAPTIVE, SHARED, Sink, hint


class Pair:
    """A session over two drafts of different weights."""

    def __init__(self) -> None:
        self.scripted = [Draft(), Draft()]
        for number, draft in enumerate(self.scripted):
            draft.address = f"there:{number}"
            draft.info = replace(MODEL, weights_fingerprint=f"w{number}", processors=SHARED)
        self.drafts = Drafts(map(side_of, self.scripted))
        listed = proposers_of_session(self.drafts, draftings_of(0.5, 2), "s")
        self.proposers = [each for each in listed if isinstance(each, DraftProposer)]
        self.sink = Sink()
        verifier = replace(MODEL, processors=SHARED, step_times=((1, 0.02), (8, 0.03)))
        for proposer in self.proposers:
            proposer.prepare(ADAPTIVE, verifier)
            proposer.begin([1, 2, 3], 4000, ADAPTIVE, self.sink)

    def commit(self, *tokens: int, steps: tuple[Step, ...] = (), seconds: float = 0.1) -> None:
        timing = PeerTiming(0.0, seconds, seconds, seconds)
        for proposer in self.proposers:
            proposer.committed(3, Part(tokens, timing, 0, (), (), 0.0, steps, 0.0))

    def told(self, number: int, action: str) -> list[draft_pb2.CommitTokens]:
        items = self.scripted[number].told
        return [getattr(item, action) for item in items if item.WhichOneof("action") == action]


def test_both_drafts_are_told_of_commits_and_of_the_price_of_their_steps() -> None:
    pair = Pair()
    pair.commit(4, 5)
    for number in (0, 1):
        (commit,) = pair.told(number, "commit")
        assert [*commit.tokens] == [4, 5] and commit.price == pytest.approx(20.0)


def test_each_draft_gets_what_its_own_hints_brought() -> None:
    pair = Pair()
    for number, draft in enumerate(pair.scripted):
        message = hint(4, 5, source_id=number + 7)
        draft.runs[-1].receive(draft_pb2.DraftResult(hints=[message]))
    assert [each.source_id for each in pair.sink.hints] == [7, 8]
    timing = PeerTiming(0.0, 0.0, 0.0, 0.0)
    pair.commit(4, 5, 6, steps=(Step(3, 2, 2, Source.DRAFT, 0.0, timing, 8),))
    assert [side.verified_count for side in pair.drafts.sides] == [0, 2]
    for proposer in pair.proposers:
        proposer.stop()
    assert [side.figures.acceptance.numerator for side in pair.drafts.sides] == [0, 2]
    assert [side.figures.turn_count for side in pair.drafts.sides] == [1, 1]
