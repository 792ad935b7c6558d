"""Check the steps that a verifier reports of a run."""

from __future__ import annotations

from orchestrator.peers.checking.bounds import check_seconds, check_within
from orchestrator.peers.checking.faults import PeerFaultError
from slipstream.wire.v1 import hint_pb2, verifier_pb2

_MOST_HINT_TOKENS = 1024
"""Most hint tokens of a step: more than any service verifies of one sequence."""

_SOURCES = tuple(hint_pb2.HintSource.values())[1:]


def check_steps(result: verifier_pb2.RunResult, most_seconds: float) -> None:
    """Raise PeerFaultError unless the steps of a result account for its tokens, each at most for
    ``most_seconds``."""
    count = sum(step.token_count for step in result.steps)
    if count != len(result.tokens):
        raise PeerFaultError("steps.token_count", f"must add up to {len(result.tokens)}, but is {count} in all")
    for step in result.steps:
        _check_step(step, most_seconds)


def _check_step(step: verifier_pb2.RunStep, most_seconds: float) -> None:
    check_within("steps.token_count", step.token_count, 1, step.token_count)
    check_within("steps.hint_count", step.hint_count, 0, _MOST_HINT_TOKENS)
    check_within("steps.accepted_count", step.accepted_count, 0, min(step.hint_count, step.token_count))
    if step.hint_count:
        check_within("steps.token_count", step.token_count, step.accepted_count, step.accepted_count + 1)
        if step.source not in _SOURCES:
            raise PeerFaultError("steps.source", f"must be one of {_SOURCES} where hint tokens were verified")
    check_seconds("steps.forward", step.forward, most_seconds)
    check_seconds("steps.held", step.held, most_seconds)
