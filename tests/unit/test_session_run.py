"""A session's run and the proposers that send hints for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestrator.errors import VerifierLostError
from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.run_parts import Part, Step
from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifier_run import Hinting
from orchestrator.proposers.proposer import HintSink, Proposer
from orchestrator.rounds.result import Origin
from orchestrator.rounds.session_run import SessionRun
from orchestrator.rounds.terms import RoundTerms
from orchestrator.sessions.turns.statistics import TurnStatistics
from orchestrator.speculation.proposal import Source
from orchestrator.speculation.settings import SpeculationSettings
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import hint_pb2
from tests.scripted_peers import MODEL, TIMING, Verifier, new_note, rounds_over


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

    def prepare(self, terms: RoundTerms, verifier: ModelInfo) -> float | None:
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
    rounds.end_turn(session, 2)
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
    rounds.end_turn(session, 1)
    assert verifier.hinting == Hinting()
    assert not echo.events


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (SpeculationSettings(0), Hinting()),
        (SpeculationSettings(), Hinting(takes_ngrams=True, longest_hold=0.5, takes_heads=True)),
        (SpeculationSettings(4), Hinting(fixed_count=4, longest_hold=0.5)),
        (SpeculationSettings(4, source=Source.NGRAM), Hinting(takes_ngrams=True, fixed_count=4, longest_hold=0.5)),
        (SpeculationSettings(source=Source.DRAFT), Hinting(longest_hold=0.5)),
        (SpeculationSettings(source=Source.HEADS), Hinting(longest_hold=0.5, takes_heads=True)),
    ],
)
def test_a_run_uses_hints_as_the_turn_asks(asked: SpeculationSettings, expected: Hinting) -> None:
    run = SessionRun(PeerSequence(), [Echo(), Echo(0.5), Echo(0.25)])
    assert run.hinting(RoundTerms(SamplingRule(), asked), MODEL) == expected


def told(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -0.5, ())


async def test_a_part_of_several_steps_is_returned_step_by_step() -> None:
    verifier = Verifier()
    verifier.may_answer.set()
    timing = PeerTiming(0.0, 0.1, 0.1, 0.25)
    steps = (
        Step(3, 4, 2, Source.DRAFT, 0.5, timing),
        Step(2, 0, 0, None, 0.0, timing),
        Step(1, 1, 1, Source.NGRAM, 0.0, timing),
    )
    tokens = (11, 12, 13, 14, 15, 2)
    whole = Part(tokens, TIMING, 3, tuple(map(told, tokens)), (told(1),), 0.25, steps, 100.0)
    verifier.parts = [whole]
    rounds = rounds_over([], verifier)
    session, committed = rounds.open("s"), [1, 2, 3]
    rounds.begin_turn(session, 0, recompute=False)
    terms = RoundTerms(SamplingRule(), SpeculationSettings(0))
    results, notes = [], []
    while len(committed) < 9:
        note = new_note()
        result = await rounds.run(session, committed, terms, 9 - len(committed), note)
        committed += result.tokens
        note.end(result, len(result.tokens))
        results.append(result)
        notes.append(note)
    assert committed == [1, 2, 3, *tokens]
    assert [entry.token for result in results for entry in result.logprobs] == list(tokens)
    assert [result.counted(len(result.tokens)) for result in results] == [(4, 2), (0, 0), (1, 1)]
    assert [result.next_token_kind for result in results] == ["recovered", "plain", "bonus"]
    drafted, plain, ngram = Origin.DRAFT, Origin.PLAIN, Origin.NGRAM
    assert [result.origins for result in results] == [[drafted, drafted, Origin.RECOVERED], [plain, plain], [ngram]]
    assert [result.prompt_logprobs for result in results] == [(told(1),), (), ()]
    assert [result.prefilled_count for result in results] == [3, 0, 0]
    assert [(note.began, note.ended) for note in notes] == [(98.75, 99.5), (99.5, 99.75), (99.75, 100.0)]
    assert [note.verifier_idle for note in notes] == [0.5, 0.0, 0.0]
    statistics = TurnStatistics()
    for result in results:
        statistics.add(result, len(result.tokens))
    spent = statistics.draft, statistics.verify, statistics.queue, statistics.network
    assert spent == pytest.approx((0.5, 0.3, 0.0, 0.45))


async def test_what_is_left_of_a_part_is_dropped_with_its_turn() -> None:
    verifier = Verifier()
    verifier.may_answer.set()
    step = Step(1, 0, 0, None, 0.0, TIMING)
    verifier.parts = [Part((11, 12), TIMING, 3, (), (), 0.25, (step, step), 100.0)]
    rounds = rounds_over([], verifier)
    session = rounds.open("s")
    terms = RoundTerms(SamplingRule(), SpeculationSettings(0))
    rounds.begin_turn(session, 0, recompute=False)
    assert (await rounds.run(session, [1, 2, 3], terms, 9, new_note())).tokens == (11,)
    rounds.end_turn(session, 1)
    rounds.begin_turn(session, 4, recompute=False)
    assert (await rounds.run(session, [1, 2, 3, 11], terms, 9, new_note())).tokens == (7,)


async def test_an_error_comes_after_all_tokens_before_it() -> None:
    verifier = Verifier()
    verifier.may_answer.set()
    step = Step(1, 0, 0, None, 0.0, TIMING)
    verifier.parts = [Part((11, 12), TIMING, 3, (), (), 0.25, (step, step), 100.0)]
    rounds = rounds_over([], verifier)
    session, tokens = rounds.open("s"), [1, 2, 3]
    terms = RoundTerms(SamplingRule(), SpeculationSettings(0))
    rounds.begin_turn(session, 0, recompute=False)
    for expected in (11, 12):
        result = await rounds.run(session, tokens, terms, 9, new_note())
        verifier.is_away = True
        assert result.tokens == (expected,)
        tokens += result.tokens
    with pytest.raises(VerifierLostError):
        await rounds.run(session, tokens, terms, 9, new_note())
