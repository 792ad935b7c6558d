"""Several answers to one prompt: each is a turn with its own seed. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from orchestrator.sessions.conversation.resolving import ResolvedTurn
from slipstream.sampling_fields import MAX_SEED

MAX_CHOICES = 64


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of one answer.

    Answer 0 has the request's seed, as the only answer to a request for one has; the other seeds
    are hashes of it.
    """
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED


def resolved_choice(resolved: ResolvedTurn, index: int) -> ResolvedTurn:
    """Return the settings of one answer's turn. The prompt's log-probabilities are the same for all
    answers, and come with the first."""
    terms = resolved.terms
    logprobs = terms.logprobs
    if index and logprobs is not None:
        logprobs = replace(logprobs, prompt=False)
    rule = replace(terms.rule, seed=choice_seed(terms.rule.seed, index))
    return replace(resolved, terms=replace(terms, rule=rule, logprobs=logprobs))
