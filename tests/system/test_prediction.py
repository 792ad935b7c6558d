"""A caller's prediction of the answer: the same text in fewer steps, also if it is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings

COUNT = 200
QUESTION = [("user", "What does os.path.join do?")]
GREEDY = Settings(temperature=0.0, max_token_count=COUNT, ignore_end_tokens=True, top_logprob_count=1)
SAMPLED = replace(GREEDY, temperature=0.8, seed=5)
HINTED = 8
"""Hint tokens of a step: a fixed number, so that the machine's speed changes nothing."""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with LocalServices(PairSettings(draft="")) as local, Client(local.orchestrator_address) as connected:
        yield connected


def answer(client: Client, settings: Settings, prediction: str | Sequence[int] | None = None) -> Result:
    return client.answer(QUESTION, settings, prediction=prediction).wait()


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.essential
def test_an_answer_that_was_predicted_takes_fewer_steps(client: Client, settings: Settings) -> None:
    plain = answer(client, replace(settings, draft_length=0))
    assert plain.generated_token_count == COUNT
    predicted = answer(client, replace(settings, draft_length=HINTED), plain.token_ids)
    assert (predicted.token_ids, predicted.logprobs) == (plain.token_ids, plain.logprobs)
    steps = COUNT - predicted.prediction_accepted_token_count
    assert steps <= COUNT / 2, "hints for more than half of the answer were sent with its start"


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_wrong_prediction_changes_nothing(client: Client, settings: Settings) -> None:
    plain = answer(client, replace(settings, draft_length=0))
    changed = [*plain.token_ids[:20], 3, *plain.token_ids[25:60], *plain.token_ids[:40][::-1], *plain.token_ids[60:]]
    for prediction in ("Nothing of the kind. " * 50, [5] * 300, changed, plain.token_ids[::-1]):
        for draft_length in (HINTED, "adaptive", 0):
            said = answer(client, replace(settings, draft_length=draft_length), prediction)
            assert (said.token_ids, said.logprobs) == (plain.token_ids, plain.logprobs)


def test_an_answer_that_comes_back_to_its_prediction_is_hinted_again(client: Client) -> None:
    plain = answer(client, replace(GREEDY, draft_length=0))
    late = [*[7] * 300, *plain.token_ids[30:]]
    said = answer(client, replace(GREEDY, draft_length=HINTED, proposer="draft"), late)
    assert said.token_ids == plain.token_ids and said.prediction_accepted_token_count > 0


def test_a_text_is_a_prediction_and_each_message_of_a_session_may_have_its_own(client: Client) -> None:
    settings = Settings(temperature=0.0, draft_length=HINTED)
    with client.chat(settings=settings) as chat:
        first = chat.send("What does os.path.join do?").wait()
    with client.chat(settings=settings) as chat:
        assert chat.send("What does os.path.join do?", prediction=first.text).wait().text == first.text
        second = chat.send("And json.dumps?", prediction=first.text).wait()
    assert second.finish_reason == "END_TOKEN"
