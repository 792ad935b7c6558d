"""Coupled sampling: draft and target add the same noise to their own logits and take the argmax.

A draft token is accepted exactly if it equals the target's own choice, so the text never depends on
the draft. Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative
decoding" (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle

import numpy as np

from slipstream.sampling.blocks import BlockedLogits
from slipstream.sampling.kernel import Floats, Ints, draw, find_likeliest
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule, numbers_of
from slipstream.sampling.sharing import share_rows

SLACK = 0.1
"""In scores: blocks that may come so near to the best are opened too, so that a near tie is seen to
be one."""
_CANDIDATE_SLACK = 3.0
"""The same where a draft wants to know what else may be chosen: in one row of twenty it is
something further off."""
_SEARCH_LOGITS = 16 * 1024
"""Logits that take as long to weigh as the search for a row's best token, for any vocabulary."""


def choose_coupled(
    logits: BlockedLogits,
    rules: Sequence[SamplingRule],
    positions: Sequence[int],
    candidate_count: int | None = None,
) -> list[Choice]:
    """``argmax_v(logits[v] / temperature - log(arrival(seed, position, v)))`` for each row, over
    the tokens that its cut keeps.

    The largest logit of each row is finite. With a ``candidate_count``, 0 included, the choices are
    a draft's: with log-probabilities, and that many candidates by their perturbed logits.
    """
    found = Found(len(rules), candidate_count)
    slack = _CANDIDATE_SLACK if candidate_count else SLACK

    draw_some = partial(
        draw,
        logits.stored,
        logits.maxima,
        logits.indices,
        numbers_of(rules),
        np.array(positions, dtype=np.uint64),
        slack,
        found.tokens,
        found.scores,
        found.logprobs,
    )
    share_rows(draw_some, len(rules), logits.stored.shape[1] + _SEARCH_LOGITS)
    choices = found.choices()
    if candidate_count is None:
        cut_margins(choices, [True])
    return choices


def cut_margins(choices: Sequence[Choice], are_drawn: Sequence[bool]) -> None:
    """Cut the margins of a target's drawn choices to `SLACK`. What is further off may have been
    looked at or not. ``are_drawn`` says it of each row, and repeats."""
    for choice, is_drawn in zip(choices, cycle(are_drawn), strict=False):
        if is_drawn:
            choice.margin = min(choice.margin, SLACK)


def choose_likeliest(logits: BlockedLogits, candidate_count: int | None = None) -> list[Choice]:
    """Each row's largest logit, the lower token id among equals.

    With a ``candidate_count``, 0 included, the choices are a draft's: with log-probabilities, and
    that many candidates.
    """
    row_count = len(logits.indices)
    found = Found(row_count, candidate_count)

    find_some = partial(
        find_likeliest,
        logits.stored,
        logits.maxima,
        logits.indices,
        found.tokens,
        found.scores,
        found.logprobs,
    )
    if candidate_count is None:  # a few blocks of each row are looked at
        find_some(0, row_count)
    else:  # every token of them, for the sum of their weights
        share_rows(find_some, row_count, logits.stored.shape[1] + _SEARCH_LOGITS)
    return found.choices()


class Found:
    """Memory for what compiled code finds of some rows: the best two tokens, a draft's candidates,
    log-probabilities."""

    def __init__(self, row_count: int, candidate_count: int | None) -> None:
        self._candidate_count = candidate_count or 0
        width = max(2, self._candidate_count)
        self.tokens: Ints = np.empty((row_count, width), dtype=np.int64)
        self.scores: Floats = np.empty((row_count, width))
        self.logprobs: Floats = np.empty(0 if candidate_count is None else row_count)

    def choices(self, count: int | None = None) -> list[Choice]:
        """One for each of the first ``count`` rows, or of all."""
        tokens = self.tokens[:count, 0].tolist()
        # Infinite ones may be equal.
        margins = [0.0 if first == second else first - second for first, second in self.scores[:count, :2].tolist()]
        if not len(self.logprobs):
            return [*map(Choice, tokens, margins)]
        found = zip(tokens, margins, self.logprobs[:count].tolist(), strict=True)
        if not self._candidate_count:
            return [Choice(*choice) for choice in found]
        return [Choice(*choice, self._candidates(row)) for row, choice in enumerate(found)]

    def _candidates(self, row: int) -> tuple[tuple[int, float], ...]:
        count = min(self._candidate_count, int(np.isfinite(self.scores[row]).sum()))
        return tuple(zip(self.tokens[row, :count].tolist(), self.scores[row, :count].tolist(), strict=True))


def accepted_count(proposal: Sequence[int], choices: Sequence[int]) -> int:
    """Length of the longest prefix of ``proposal`` that equals the target's own choices."""
    count = 0
    while count < len(proposal) and proposal[count] == choices[count]:
        count += 1
    return count
