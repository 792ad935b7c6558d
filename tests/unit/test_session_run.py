"""A session's run and the proposers that send hints for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifier_run import Hinting, Part
from orchestrator.proposers.proposer import HintSink, Proposer
from orchestrator.rounds.session_run import SessionRun
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.proposal import Source
from orchestrator.speculation.session import SpeculationSettings
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import hint_pb2
from tests.scripted_peers import MODEL, Verifier, new_note, rounds_over


class Echo(Proposer):
    """Hints what came last, as soon as it may."""

    def __init__(self, hold: float | None = None) -> None:
        self.events: list[tuple[str, object]] = []
        self._hold = hold

    def begin(self, tokens: Sequence[int], until_length: int, terms: RoundTerms, sink: HintSink) -> None:
        self.events.append(("begin", (len(tokens), until_length)))
        sink.hint(hint_pb2.Hint(start=len(tokens), tokens=tokens[-1:]))

    def committed(self, position: int, part: Part) -> None:
        self.events.append(("committed", (position, part.tokens)))

    def stop(self) -> None:
        self.events.append(("stop", ()))

    def longest_hold(self, terms: RoundTerms, verifier: ModelInfo) -> float | None:
        return self._hold


async def test_proposers_follow_a_run_from_its_start_to_its_end() -> None:
    verifier, echo = Verifier(), Echo()
    verifier.may_answer.set()
    rounds = rounds_over([], verifier)
    session = rounds.open("s")
    session.run = SessionRun(session.verifier, [echo])
    rounds.begin_turn(session, 0, recompute=False)
    terms = RoundTerms(SamplingRule(), SpeculationSettings())
    tokens = [1, 2, 3]
    side = rounds._parties.verifying
    for _ in range(2):
        tokens += (await side.next_part(session.run, tokens, terms, 8 - len(tokens), new_note())).tokens
    rounds.end_turn(session, tokens, 2)
    committed = [("committed", (3, (7,))), ("committed", (4, (7,)))]
    assert echo.events == [("begin", (3, 8)), *committed, ("stop", ())]
    assert [(hint.start, *hint.tokens) for hint in verifier.run.hints] == [(3, 3)]


async def test_plain_decoding_asks_no_proposer() -> None:
    verifier, echo = Verifier(), Echo(hold=1.0)
    verifier.may_answer.set()
    rounds = rounds_over([], verifier)
    session = rounds.open("s")
    session.run = SessionRun(session.verifier, [echo])
    rounds.begin_turn(session, 0, recompute=False)
    await rounds.run(session, [1, 2, 3], RoundTerms(SamplingRule(), SpeculationSettings(0)), 8, new_note())
    rounds.end_turn(session, [1, 2, 3, 7], 1)
    assert verifier.hinting == Hinting()
    assert not echo.events


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (SpeculationSettings(0), Hinting()),
        (SpeculationSettings(), Hinting(takes_ngrams=True, longest_hold=0.5)),
        (SpeculationSettings(4), Hinting(fixed_count=4, longest_hold=0.5)),
        (SpeculationSettings(4, source=Source.NGRAM), Hinting(takes_ngrams=True, fixed_count=4, longest_hold=0.5)),
        (SpeculationSettings(source=Source.DRAFT), Hinting(longest_hold=0.5)),
    ],
)
def test_a_run_uses_hints_as_the_turn_asks(asked: SpeculationSettings, expected: Hinting) -> None:
    run = SessionRun(PeerSequence(), [Echo(), Echo(0.5), Echo(0.25)])
    assert run.hinting(RoundTerms(SamplingRule(), asked), MODEL) == expected
