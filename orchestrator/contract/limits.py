"""Conversion of a caller's limits into a message."""

from __future__ import annotations

from orchestrator.sessions.admission.admission import Admission
from orchestrator.sessions.admission.principal import Principal
from slipstream.v1 import orchestrator_pb2


def caller_limits(admission: Admission, caller: Principal) -> orchestrator_pb2.CallerLimits | None:
    """Return a caller's limits on turns and tokens, and what they leave it; None if it has none."""
    limits = caller.limits
    if limits.running_turn_count is None and limits.tokens_per_minute is None:
        return None
    share = admission.share_of(caller)
    return orchestrator_pb2.CallerLimits(
        max_turn_count=limits.running_turn_count,
        turn_count=share.turn_count,
        tokens_per_minute=limits.tokens_per_minute,
        left_token_count=0.0 if limits.tokens_per_minute is None else max(0.0, share.left),
    )
