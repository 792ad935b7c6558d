"""transformers' own processors are the oracle, in transformers' own order."""

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from slipstream.sampling.filters import apply_filters
from slipstream.sampling.rule import SamplingRule

VOCABULARY = 300

RULES = [
    SamplingRule(temperature=0.8),
    SamplingRule(temperature=1.7),
    SamplingRule(temperature=1.0, top_k=5),
    SamplingRule(temperature=1.0, top_k=1000),
    SamplingRule(temperature=1.0, top_p=0.9),
    SamplingRule(temperature=1.0, top_p=0.05),
    SamplingRule(temperature=1.0, min_p=0.1),
    SamplingRule(temperature=0.7, top_k=40, top_p=0.8, min_p=0.02),
    SamplingRule(temperature=0.7, top_k=40, end_token_ids=(2, 7), first_end_position=12),
]


def oracle(rule: SamplingRule, logits: torch.Tensor, position: int) -> torch.Tensor:
    processors = LogitsProcessorList()
    if rule.end_token_ids:
        end, missing = list(rule.end_token_ids), rule.first_end_position
        processors.append(MinNewTokensLengthLogitsProcessor(0, missing, end, device=logits.device))
    processors.append(TemperatureLogitsWarper(rule.temperature))
    if rule.top_k:
        processors.append(TopKLogitsWarper(rule.top_k))
    if rule.top_p < 1:
        processors.append(TopPLogitsWarper(rule.top_p))
    if rule.min_p:
        processors.append(MinPLogitsWarper(rule.min_p))
    result: torch.Tensor = processors(torch.zeros(1, position, dtype=torch.int64), logits.unsqueeze(0))[0]
    return result


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_filters_equal_transformers(rule: SamplingRule, spread: float) -> None:
    logits = torch.randn(20, VOCABULARY, generator=torch.Generator().manual_seed(0)) * spread
    got = apply_filters(logits, [rule] * 20, range(20))
    for position in range(20):
        assert torch.equal(got[position], oracle(rule, logits[position], position)), position


def test_each_row_follows_its_own_rule_whatever_stands_beside_it() -> None:
    logits = torch.randn(len(RULES), VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3
    together = apply_filters(logits, RULES, [9] * len(RULES))
    for row, rule in enumerate(RULES):
        assert torch.equal(together[row], apply_filters(logits[row : row + 1], [rule], [9])[0]), rule


def test_a_greedy_row_is_left_alone_beside_sampled_ones() -> None:
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(2))
    got = apply_filters(logits, [SamplingRule(), SamplingRule(temperature=0.5, top_k=3, min_p=0.5)], [0, 0])
    assert torch.equal(got[0], logits[0])
