"""Hints from a caller's prediction: what is sent when, against an answer that follows it or not."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import pytest

from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.run_parts import Part
from orchestrator.proposers.prediction import PredictionProposer
from orchestrator.rounds.terms import Prediction, RoundTerms
from orchestrator.speculation.settings import SpeculationSettings
from slipstream.engine.hinting.hints import HintBox
from slipstream.hosting.hint_wire import hint_of
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import hint_pb2

PROMPT = [7, 8, 9]
VOCABULARY = 1000
NEVER = 10**6
"""A length that no answer here has."""


def part(tokens: Sequence[int]) -> Part:
    timing = PeerTiming(0.0, 0.001, 0.001, 0.002)
    return Part(tuple(tokens), timing, 0, (), (), 0.0, (), 0.0)


class Run:
    """A run whose sink is a verifier's box of hints."""

    traceparent = ""

    def __init__(self, predicted: Sequence[int], answer: Sequence[int] = (), until: int = NEVER) -> None:
        self.tokens = [*PROMPT, *answer]
        self.box = HintBox()
        self.sent: list[hint_pb2.Hint] = []
        self.proposer = PredictionProposer()
        rule = SamplingRule(first_generated_position=len(PROMPT))
        self.terms = RoundTerms(rule, SpeculationSettings(), prediction=Prediction(predicted, 5))
        self.proposer.begin(self.tokens, until, self.terms, self)

    def hint(self, message: hint_pb2.Hint) -> None:
        self.sent.append(message)
        self.box.add(hint_of(message, VOCABULARY), self.tokens)

    def commit(self, *tokens: int) -> None:
        position = len(self.tokens)
        self.tokens += tokens
        self.box.candidates(self.tokens)
        self.proposer.committed(position, part(tokens))

    @property
    def next_tokens(self) -> tuple[int, ...]:
        """The longest hint for the next tokens."""
        return max((each.tokens for each in self.box.candidates(self.tokens)), key=len, default=())


def steps_of(run: Run, answer: Sequence[int], most: int = 64) -> int:
    """Decode an answer; a step verifies at most so many tokens."""
    count, at = 0, 0
    while at < len(answer):
        hinted, right = run.next_tokens[:most], 0
        while right < len(hinted) and at + right < len(answer) and hinted[right] == answer[at + right]:
            right += 1
        chosen = answer[at : at + right + 1]
        run.commit(*chosen)
        at, count = at + len(chosen), count + 1
    return count


def different(count: int, seed: int = 1) -> list[int]:
    """Tokens that do not repeat themselves."""
    return random.Random(seed).sample(range(10, VOCABULARY), count)


def test_the_first_hints_are_the_predictions_beginning() -> None:
    run = Run(different(500))
    assert all(1 <= len(hint.tokens) <= 64 and len(hint.survivals) == len(hint.tokens) for hint in run.sent)
    assert run.sent[0].start == len(PROMPT) and list(run.sent[0].tokens) == different(500)[:64]
    assert max(hint.start + len(hint.tokens) for hint in run.sent) - len(PROMPT) in range(128, 192)
    for hint in run.sent:
        assert (hint.source, hint.source_id, hint.length_seen) == (hint_pb2.HINT_SOURCE_PREDICTION, 5, len(PROMPT))
        assert hint.survivals[0] < 1 and list(hint.survivals) == sorted(hint.survivals, reverse=True)


@pytest.mark.parametrize("kind", [list, lambda tokens: array("i", tokens)])
@pytest.mark.parametrize("most", [64, 10])
def test_an_answer_that_is_the_prediction_takes_few_steps(kind: type[list[int]], most: int) -> None:
    answer = different(900)
    run = Run(kind(answer))
    assert steps_of(run, answer, most) <= 900 / (most + 1) + 900 / 48
    assert len(run.sent) < 900 / 30 + 2, "no hint is sent while there are enough"
    assert not run.next_tokens


def test_a_step_has_enough_hinted_tokens_wherever_the_one_before_ended() -> None:
    predicted = different(400)
    run = Run(predicted)
    for token in predicted[:300]:
        assert len(run.next_tokens) >= 32
        run.commit(token)


def test_a_wrong_prediction_costs_no_more_hints_than_those_sent_at_first() -> None:
    run = Run(different(400))
    sent = len(run.sent)
    assert steps_of(run, [5] * 30 + [6] * 30) == 60
    assert len(run.sent) == sent


def test_an_answer_that_comes_back_to_the_prediction_is_hinted_again() -> None:
    predicted = different(600)
    answer = [*predicted[:100], 1, 2, 3, 4, *predicted[140:300], 5, *predicted[300:600]]
    run = Run(predicted)
    left_twice = 4 + 2 * 4
    assert steps_of(run, answer) <= len(answer) / 65 + left_twice + len(answer) / 48
    run = Run(predicted)
    run.commit(*answer[:104], *predicted[140:142])
    assert not run.next_tokens, "two tokens agree by chance"
    run.commit(predicted[142])
    assert run.next_tokens == tuple(predicted[143:207])


def test_a_run_that_begins_again_within_an_answer_finds_its_place() -> None:
    predicted = different(300)
    assert Run(predicted, predicted[:50]).next_tokens == tuple(predicted[50:114])
    assert Run(predicted, [*predicted[:50], 1, 2, *predicted[60:70]]).next_tokens == tuple(predicted[70:134])
    assert Run(predicted, [1, 2, 3]).next_tokens == ()


def test_no_hint_reaches_past_the_last_token_of_a_run() -> None:
    run = Run(different(300), until=len(PROMPT) + 10)
    assert [len(hint.tokens) for hint in run.sent] == [10]
    run.commit(*different(300)[:10])
    assert len(run.sent) == 1


def test_a_turn_without_a_prediction_gets_no_hint() -> None:
    run = Run(different(300))
    run.proposer.stop()
    run.sent.clear()
    run.proposer.begin(run.tokens, NEVER, RoundTerms(SamplingRule(), SpeculationSettings()), run)
    run.commit(*different(300)[:100])
    assert not run.sent
