"""transformers' own logits processors, and its own forward, as what everything here is compared
with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
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

from slipstream.sampling import filters, processing
from slipstream.sampling.kernel import BLOCK, Domain
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from tests.tensors import blocked


def processed(rule: SamplingRule, logits: torch.Tensor, context: Sequence[int]) -> torch.Tensor:
    """``logits`` ``[vocabulary]`` after ``context``, in the order of transformers'
    `_get_logits_processor`."""
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
    if rule.top_n_sigma:
        processors.append(lambda _, scores: _near_the_largest(scores, rule.top_n_sigma))
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


def _near_the_largest(scores: torch.Tensor, deviations: float) -> torch.Tensor:
    """transformers has no such processor: the formula of Top-nσ is written out here."""
    finite = scores[scores > -torch.inf].double()
    return scores.masked_fill(scores < finite.max() - deviations * finite.std(correction=0), -torch.inf)


@torch.inference_mode()
def generated(model: PreTrainedModel, prompt: Sequence[int], rule: SamplingRule, token_count: int) -> list[int]:
    """Plain decoding: transformers' forward and processors, and this project's noise where the rule
    samples."""
    context = list(prompt)
    while len(context) < len(prompt) + token_count:
        logits = model(torch.tensor([context])).logits[0, -1]
        left = processed(rule, logits, context)
        context.append(best_token(left, rule.seed, len(context)) if rule.temperature else int(left.argmax()))
        if context[-1] in rule.end_token_ids:
            break
    return context[len(prompt) :]


def field(seed: int, position: int, count: int) -> NDArray[np.float64]:
    """The noise of the tokens 0 to ``count`` - 1, with every block opened: numpy's generator, and
    whole arrays at a time."""
    blocks = -(-count // BLOCK)
    first_words, second_words = (_words(seed, position, use, blocks) for use in (Domain.FIRST, Domain.SECOND))
    first = _waits(first_words) / BLOCK
    second = first + _waits(second_words) / (BLOCK - 1)
    place = (first_words % np.uint64(BLOCK)).astype(np.int64)[:, None]
    times = _waits(_words(seed, position, Domain.OTHERS, blocks * BLOCK)).reshape(blocks, BLOCK)
    np.put_along_axis(times, place, np.inf, axis=1)
    times += (second - times.min(axis=1))[:, None]
    np.put_along_axis(times, place, first[:, None], axis=1)
    noise: NDArray[np.float64] = -np.log(times).reshape(-1)[:count]
    return noise


def _words(seed: int, position: int, use: Domain, count: int) -> NDArray[np.uint64]:
    """Words as numpy's generator has them, which adds one to the counter before it draws."""
    return np.random.Philox(key=seed, counter=[0, position, use, 0]).random_raw(count)


def _waits(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    waits: NDArray[np.float64] = -np.log(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
    return waits


def best_token(left: torch.Tensor, seed: int, position: int) -> int:
    """The argmax of filtered logits ``[vocabulary]`` plus noise, over every token."""
    return int((left.float().numpy().astype(np.float64) + field(seed, position, len(left))).argmax())


def apply_filters(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """All that rules do to logits ``[rows, vocabulary]``: float32, removed tokens at -inf."""
    left = processing.processed(blocked(logits), rows).floats()
    return torch.from_numpy(filters.filtered(left, [row.rule for row in rows]))
