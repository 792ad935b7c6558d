"""Which jobs' tokens go into a step. Pure.

Rounds have few tokens each and somebody waits for every one of them; prompts have many. Both have a
share of each step, so that neither can keep the other out: long prompts go in chunks beside rounds
(chunked prefill, Agrawal et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_PROMPT_SHARE = 4
"""One token in so many of a step is kept for prompts, if any wait and rounds would fill it."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much one step may hold, and how much may wait."""

    max_step_tokens: int = 512
    """Tokens in one forward, over all sequences."""
    prefill_chunk: int = 256
    """Tokens of one sequence in one forward: the chunk of chunked prefill."""
    queue_limit: int = 1024
    """Unfinished jobs; one more is refused."""


class Want(NamedTuple):
    """What a job would append: so many tokens, some of them a prompt's or none."""

    token_count: int
    is_prompt: bool


def schedule(wants: Sequence[Want], limits: BatchLimits) -> list[tuple[int, int]]:
    """(index, token count) of the wants that go into the next step; ``wants`` are in order of
    arrival.

    Rounds first, but for the prompts' share; whatever one kind leaves, the other takes. Of rounds
    the oldest come first, of prompts those that have least to go, so that none waits for a longer
    one; the oldest has half, so that it gets on.
    """
    most = [min(want.token_count, limits.prefill_chunk) for want in wants]
    if len(most) == 1:
        return _fill([0], most, limits.max_step_tokens)
    rounds = [index for index, want in enumerate(wants) if not want.is_prompt]
    prompts = [index for index, want in enumerate(wants) if want.is_prompt]
    kept = min(limits.max_step_tokens // _PROMPT_SHARE, sum(most[index] for index in prompts))
    taken = _fill(rounds, most, limits.max_step_tokens - kept)
    left = limits.max_step_tokens - sum(count for _, count in taken)
    return taken + _fill_prompts(prompts, wants, most, left)


def _fill_prompts(
    prompts: Sequence[int], wants: Sequence[Want], most: Sequence[int], budget: int
) -> list[tuple[int, int]]:
    if not prompts:
        return []
    oldest = prompts[0]
    kept = min(most[oldest], -(-budget // 2))
    by_length = sorted(prompts, key=lambda index: wants[index].token_count)
    place = by_length.index(oldest)
    taken = _fill(by_length[:place], most, budget - kept)
    return taken + _fill(by_length[place:], most, budget - sum(count for _, count in taken))


def _fill(indices: Iterable[int], most: Sequence[int], budget: int) -> list[tuple[int, int]]:
    taken: list[tuple[int, int]] = []
    for index in indices:
        count = min(most[index], budget)
        if count == 0:
            break
        taken.append((index, count))
        budget -= count
    return taken
