"""Several answers to one prompt: each is a turn of its own, with a seed of its own. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from orchestrator.sessions.conversation.resolving import ResolvedTurn
from slipstream.sampling_fields import MAX_SEED

MAX_CHOICES = 64


def choice_seed(seed: int, index: int) -> int:
    """Answer 0 has the request's own seed, so that it is the answer to a request for one; the
    others' are hashes."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED


def resolved_choice(resolved: ResolvedTurn, index: int) -> ResolvedTurn:
    """The turn of one answer. The prompt's log-probabilities come with the first and are the same
    for all."""
    terms = resolved.terms
    logprobs = terms.logprobs
    if index and logprobs is not None:
        logprobs = replace(logprobs, prompt=False)
    rule = replace(terms.rule, seed=choice_seed(terms.rule.seed, index))
    return replace(resolved, terms=replace(terms, rule=rule, logprobs=logprobs))
