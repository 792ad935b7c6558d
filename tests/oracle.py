"""transformers' own logits processors, and its own forward, as what everything here is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from slipstream.sampling.coupled import choose_coupled, choose_likeliest
from slipstream.sampling.rule import SamplingRule


def processed(rule: SamplingRule, logits: torch.Tensor, context: Sequence[int]) -> torch.Tensor:
    """``logits`` ``[vocabulary]`` after ``context``, in the order of transformers' `_get_logits_processor`."""
    processors = LogitsProcessorList()
    if rule.logit_bias:
        processors.append(SequenceBiasLogitsProcessor([[[token], bias] for token, bias in rule.logit_bias]))
    if rule.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(rule.repetition_penalty))
    if rule.banned_token_ids:
        processors.append(NoBadWordsLogitsProcessor([[token] for token in rule.banned_token_ids]))
    if rule.end_token_ids:
        end, missing = list(rule.end_token_ids), rule.first_end_position
        processors.append(MinNewTokensLengthLogitsProcessor(0, missing, end, device=logits.device))
    if rule.allowed_token_ids:
        processors.append(PrefixConstrainedLogitsProcessor(lambda *_: list(rule.allowed_token_ids), 1))
    if rule.temperature:
        processors.append(TemperatureLogitsWarper(rule.temperature))
    if rule.top_k:
        processors.append(TopKLogitsWarper(rule.top_k))
    if rule.top_p < 1:
        processors.append(TopPLogitsWarper(rule.top_p))
    if rule.min_p:
        processors.append(MinPLogitsWarper(rule.min_p))
    if rule.typical_p < 1:
        processors.append(TypicalLogitsWarper(rule.typical_p))
    result: torch.Tensor = processors(torch.tensor([list(context)]), logits.unsqueeze(0).clone())[0]
    return result


@torch.inference_mode()
def generated(model: PreTrainedModel, prompt: Sequence[int], rule: SamplingRule, token_count: int) -> list[int]:
    """Plain decoding: transformers' forward and processors, and this project's noise where the rule samples."""
    context = list(prompt)
    while len(context) < len(prompt) + token_count:
        logits = model(torch.tensor([context])).logits[0, -1]
        filtered = processed(rule, logits, context).unsqueeze(0)
        sampled = rule.temperature > 0
        choices = choose_coupled(filtered, [rule.seed], [len(context)]) if sampled else choose_likeliest(filtered)
        context.append(choices[0].token)
        if context[-1] in rule.end_token_ids:
            break
    return context[len(prompt) :]
