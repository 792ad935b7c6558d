"""The choice of which jobs' tokens go into a step. Pure.

Each round has few tokens and a client that waits; a prompt has many tokens. Both have a share of
each step, so neither can keep the other out. Long prompts go in chunks beside rounds (chunked
prefill, Agrawal et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_PROMPT_SHARE = 4
"""Prompts keep one token in this many of a step, if any wait and rounds would fill the step."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one step and of the queue."""

    max_step_tokens: int = 512
    """Tokens in one forward, over all sequences."""
    prefill_chunk: int = 256
    """Tokens of one sequence in one forward: the chunk of chunked prefill."""
    queue_limit: int = 1024
    """Unfinished jobs; one more is refused."""


class Want(NamedTuple):
    """Tokens that a job would append. They belong to a prompt or to a round."""

    token_count: int
    is_prompt: bool


def schedule(wants: Sequence[Want], limits: BatchLimits) -> list[tuple[int, int]]:
    """Return (index, token count) of the wants that go into the next step. ``wants`` are in order
    of arrival.

    Rounds come first, except for the prompts' share; each kind may use what the other leaves. The
    oldest rounds come first. Among prompts, those with the least left come first, so that none
    waits for a longer one. The oldest prompt keeps half of their share, so it makes progress.
    """
    most = [min(want.token_count, limits.prefill_chunk) for want in wants]
    if len(most) == 1:
        return _fill([0], most, limits.max_step_tokens)
    rounds = [index for index, want in enumerate(wants) if not want.is_prompt]
    prompts = [index for index, want in enumerate(wants) if want.is_prompt]
    kept = prompt_share(sum(most[index] for index in prompts), limits)
    taken = _fill(rounds, most, limits.max_step_tokens - kept)
    left = limits.max_step_tokens - sum(count for _, count in taken)
    return taken + _fill_prompts(prompts, wants, most, left)


def prompt_share(token_count: int, limits: BatchLimits) -> int:
    """Return how many of ``token_count`` tokens of prompts have a place in a step that rounds would
    fill."""
    return min(limits.max_step_tokens // _PROMPT_SHARE, token_count)


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
