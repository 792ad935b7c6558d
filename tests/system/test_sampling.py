"""Every sampling parameter through the whole system, with speculation off and on, against
transformers' own processors.

The models have random weights: their probability is spread, so that every filter has something to
do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, PeerError, Result, Settings
from slipstream.sampling.rule import SamplingRule
from tests import oracle, tiny_models

PROMPTS = [[5, 900, 31, 7, 2000], [77, 78, 79, 77, 78, 79, 77]]
LENGTH = 24
END = 2
SAMPLED: dict[str, Any] = {"temperature": 0.5, "seed": 11}


@dataclass(frozen=True)
class Pair:
    client: Client
    target: PreTrainedModel
    tokenizer: Tokenizer

    def generate(self, prompt: list[int], settings: Settings) -> Result:
        return self.client.generate(prompt, settings).wait()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    target = tiny_models.save(tiny_models.build("llama"), directory / "target")
    draft = tiny_models.save(tiny_models.perturbed(tiny_models.build("llama"), 0.1), directory / "draft")
    with (
        LocalServices(PairSettings(target=str(target), draft=str(draft), dtype="float32")) as local,
        Client(local.orchestrator_address) as client,
    ):
        yield Pair(
            client,
            AutoModelForCausalLM.from_pretrained(target),
            Tokenizer.from_file(str(target / "tokenizer.json")),
        )


@dataclass(frozen=True)
class Case:
    """Settings, and the rule they mean if it is not made of the same fields."""

    settings: dict[str, Any]
    rule: dict[str, Any] = field(default_factory=dict)


CASES = {
    "greedy": Case({"temperature": 0}),
    "temperature": Case({"temperature": 1.0, "seed": 11}),
    "seed": Case({"temperature": 1.0, "seed": 2**62 + 12345}),
    "top_k": Case({**SAMPLED, "top_k": 4}),
    "top_p": Case({**SAMPLED, "top_p": 0.5}),
    "min_p": Case({**SAMPLED, "min_p": 0.25}),
    "typical_p": Case({**SAMPLED, "typical_p": 0.5}),
    "top_n_sigma": Case({**SAMPLED, "top_n_sigma": 1.5}),
    "repetition_penalty": Case({"temperature": 0, "repetition_penalty": 1.5}),
    "logit_bias": Case({"temperature": 0, "logit_bias": {9: 8.0, 12: -3.0}}, {"logit_bias": ((9, 8.0), (12, -3.0))}),
    "allowed_token_ids": Case({**SAMPLED, "allowed_token_ids": tuple(range(50, 90))}),
    "banned_token_ids": Case({"temperature": 0, "banned_token_ids": tuple(range(3, 3000))}),
    "all": Case(
        {
            **SAMPLED,
            "top_k": 40,
            "top_p": 0.75,
            "min_p": 0.015625,
            "typical_p": 0.875,
            "repetition_penalty": 1.25,
            "banned_token_ids": (40, 41),
            "allowed_token_ids": tuple(range(3, 2000)),
        }
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.essential
def test_served_tokens_equal_transformers_processors(pair: Pair, name: str) -> None:
    case = CASES[name]
    plain = False
    for prompt in PROMPTS:
        rule = SamplingRule(**{**case.settings, **case.rule})
        expected = oracle.generated(pair.target, prompt, rule, LENGTH)
        unfiltered = oracle.generated(pair.target, prompt, SamplingRule(rule.temperature, seed=rule.seed), LENGTH)
        plain |= expected == unfiltered
        settings = Settings(**case.settings, ignore_end_tokens=True, max_token_count=LENGTH)
        for draft_length in (0, 5):
            assert pair.generate(prompt, replace(settings, draft_length=draft_length)).token_ids == expected
    assert plain == (name in ("greedy", "temperature", "seed")), "the parameter must matter"


def test_presence_and_frequency_penalties_follow_their_formula(pair: Pair) -> None:
    """transformers has no such processor: OpenAI's formula over what was generated is written out
    here."""
    presence, frequency = 1.5, 0.75
    for prompt in PROMPTS:
        context = list(prompt)
        while len(context) < len(prompt) + LENGTH:
            with torch.no_grad():
                logits = pair.target(torch.tensor([context])).logits[0, -1]
            for token in set(context[len(prompt) :]):
                logits[token] -= frequency * context[len(prompt) :].count(token) + presence
            context.append(int(logits.argmax()))
        settings = Settings(
            temperature=0,
            presence_penalty=presence,
            frequency_penalty=frequency,
            ignore_end_tokens=True,
            max_token_count=LENGTH,
        )
        assert context[len(prompt) :] != oracle.generated(pair.target, prompt, SamplingRule(), LENGTH)
        for draft_length in (0, 5):
            served = pair.generate(prompt, replace(settings, draft_length=draft_length))
            assert served.token_ids == context[len(prompt) :]


def unended(pair: Pair, prompt: list[int]) -> list[int]:
    return oracle.generated(pair.target, prompt, SamplingRule(temperature=1.0, seed=3), LENGTH)


@pytest.mark.parametrize("draft_length", [0, 5])
def test_a_stop_token_ends_the_turn_and_shows_only_if_asked(pair: Pair, draft_length: int) -> None:
    tokens = unended(pair, PROMPTS[0])
    stop = tokens[9]
    assert stop not in tokens[:9]
    settings = Settings(temperature=1.0, seed=3, stop_token_ids=[stop], draft_length=draft_length)
    result = pair.generate(PROMPTS[0], settings)
    assert (result.token_ids, result.finish_reason) == (tokens[:10], "STOP_TOKEN")
    assert result.text == pair.tokenizer.decode(tokens[:9])
    shown = pair.generate(PROMPTS[0], replace(settings, include_stop_in_text=True))
    assert shown.text == pair.tokenizer.decode(tokens[:9]) + pair.tokenizer.decode([stop])
    # Held back for a while, it is not chosen: the other tokens' noise decides.
    held = pair.generate(PROMPTS[0], replace(settings, min_token_count=12, max_token_count=LENGTH))
    assert held.token_ids[:9] == tokens[:9] and stop not in held.token_ids[:12]


@pytest.mark.parametrize("draft_length", [0, 5])
def test_a_stop_string_across_token_borders(pair: Pair, draft_length: int) -> None:
    tokens = unended(pair, PROMPTS[0])
    whole = pair.tokenizer.decode(tokens)
    first = len(pair.tokenizer.decode(tokens[:8]))
    stop = whole[first - 2 : first + 2]  # the end of one token and the beginning of the next
    at = whole.index(stop)
    settings = Settings(temperature=1.0, seed=3, stop_strings=[stop], draft_length=draft_length, max_token_count=LENGTH)
    result = pair.generate(PROMPTS[0], settings)
    assert (result.text, result.finish_reason) == (whole[:at], "STOP_STRING")
    assert tokens[: len(result.token_ids)] == result.token_ids
    assert pair.generate(PROMPTS[0], replace(settings, include_stop_in_text=True)).text == whole[:at] + stop


@pytest.mark.parametrize("draft_length", [0, 5])
def test_end_tokens_end_a_turn_unless_ignored_or_too_early(pair: Pair, draft_length: int) -> None:
    bias = {END: 30.0}  # the model wants to end at once
    settings = Settings(temperature=0, logit_bias=bias, max_token_count=LENGTH, draft_length=draft_length)
    ended = pair.generate(PROMPTS[0], settings)
    assert (ended.token_ids, ended.finish_reason) == ([END], "END_TOKEN")
    late = pair.generate(PROMPTS[0], replace(settings, min_token_count=7))
    assert len(late.token_ids) == 8 and late.token_ids[-1] == END and END not in late.token_ids[:7]
    rule = SamplingRule(logit_bias=((END, 30.0),), end_token_ids=(END,), first_end_position=len(PROMPTS[0]) + 7)
    assert late.token_ids == oracle.generated(pair.target, PROMPTS[0], rule, LENGTH)
    ignored = pair.generate(PROMPTS[0], replace(settings, ignore_end_tokens=True))
    assert (ignored.token_ids, ignored.finish_reason) == ([END] * LENGTH, "MAX_TOKENS")


def test_log_probabilities_are_the_targets_own_under_any_speculation(pair: Pair) -> None:
    prompt = PROMPTS[0]
    settings = Settings(
        temperature=0.7,
        top_k=5,
        seed=8,
        top_logprob_count=3,
        prompt_logprobs=True,
        max_token_count=LENGTH,
        ignore_end_tokens=True,
    )
    plain = pair.generate(prompt, replace(settings, draft_length=0))
    with torch.inference_mode():
        logits = pair.target(torch.tensor([prompt + plain.token_ids])).logits[0]
    exact = logits.log_softmax(-1)
    tokens = [*prompt[1:], *plain.token_ids]
    got = [*plain.prompt_logprobs, *plain.logprobs]
    assert [entry.token_id for entry in got] == tokens
    for row, (token, entry) in enumerate(zip(tokens, got, strict=True)):
        assert entry.logprob == pytest.approx(float(exact[row, token]), abs=1e-4)
        best = exact[row].topk(3)
        assert [t for t, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    speculative = pair.generate(prompt, replace(settings, draft_length=5))
    assert speculative.accepted_token_count > 0
    # Not nearly: the same bits.
    assert (speculative.logprobs, speculative.prompt_logprobs) == (plain.logprobs, plain.prompt_logprobs)
    assert pair.generate(prompt, Settings(max_token_count=3)).logprobs == []


def test_a_long_prompts_log_probabilities_come_whole_over_chunks_and_caches(pair: Pair) -> None:
    prompt = [(7 * i) % 4000 + 3 for i in range(700)]  # three prefill chunks
    first = pair.generate(prompt, Settings(temperature=0, max_token_count=2))
    result = pair.generate(prompt, Settings(temperature=0, max_token_count=2, prompt_logprobs=True, draft_length=4))
    assert result.token_ids == first.token_ids
    assert result.cached_token_count == 0 and len(result.prompt_logprobs) == 699
    with torch.inference_mode():
        exact = pair.target(torch.tensor([prompt])).logits[0].log_softmax(-1)
    wanted = [float(exact[row, token]) for row, token in enumerate(prompt[1:])]
    assert [entry.logprob for entry in result.prompt_logprobs] == pytest.approx(wanted, abs=1e-3)


def test_several_choices_are_several_seeds_and_the_first_is_the_only(pair: Pair) -> None:
    settings = Settings(temperature=1.0, seed=5, max_token_count=LENGTH, draft_length=4, ignore_end_tokens=True)
    choices = pair.client.generate_choices(PROMPTS[0], 4, settings)
    assert choices[0].token_ids == pair.generate(PROMPTS[0], settings).token_ids
    assert len({tuple(choice.token_ids) for choice in choices}) == 4
    for choice in choices:
        alone = pair.generate(PROMPTS[0], replace(settings, seed=choice.seed, draft_length=0))
        assert alone.token_ids == choice.token_ids
    again = pair.client.generate_choices(PROMPTS[0], 4, settings)
    assert [choice.token_ids for choice in again] == [choice.token_ids for choice in choices]


def test_the_ratio_test_repeats_itself_and_never_mixes_with_coupled_sampling(pair: Pair) -> None:
    settings = Settings(temperature=0.7, seed=5, ratio=True, draft_length=4, max_token_count=60, ignore_end_tokens=True)
    first = pair.generate(PROMPTS[0], settings)
    assert 0 < first.acceptance_rate < 1
    assert pair.generate(PROMPTS[0], settings).token_ids == first.token_ids
    greedy = replace(settings, temperature=0)
    assert (
        pair.generate(PROMPTS[0], greedy).token_ids == pair.generate(PROMPTS[0], replace(greedy, ratio=False)).token_ids
    )
    with pair.client.chat(settings=replace(settings, max_token_count=5)) as chat:
        chat.send("a").wait()
        with pytest.raises(PeerError) as caught:
            chat.send("b", Settings(ratio=False)).wait()
        assert caught.value.reason == "ACCEPTANCE_FIXED"
        chat.send("c").wait()  # what is left open stays what it was
        chat.send("d", Settings(ratio=True)).wait()
