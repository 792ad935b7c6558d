"""One log line for each turn: session, trace, reason and sums, and nothing that a user wrote."""

from __future__ import annotations

import logging

from orchestrator.sessions.turns.turn_record import TurnEnded

log = logging.getLogger(__name__)


def log_turn(session_id: str, turn: int, principal: str, trace_id: str, ended: TurnEnded, reason: str) -> None:
    """Log a turn that has ended. ``reason`` is that of its error, empty without one."""
    level = logging.WARNING if reason else logging.INFO
    if not log.isEnabledFor(level):
        return
    statistics = ended.statistics
    how = reason or ended.finish_reason.value
    log.log(
        level,
        "session %s turn %d: %s, %d tokens in %.3f s, %d rounds, %d of %d draft tokens accepted",
        session_id,
        turn,
        how,
        ended.generated_token_count,
        statistics.total,
        statistics.round_count,
        statistics.accepted_token_count,
        statistics.draft_token_count,
        extra={
            "session_id": session_id,
            "turn": turn,
            "principal": principal,
            "trace_id": trace_id,
            "finish_reason": how,
            "prompt_token_count": ended.prompt_token_count,
            "cached_token_count": ended.cached_token_count,
            "generated_token_count": ended.generated_token_count,
            "round_count": statistics.round_count,
            "draft_token_count": statistics.draft_token_count,
            "accepted_token_count": statistics.accepted_token_count,
            "draft_failure_count": statistics.draft_failure_count,
            "seconds": round(statistics.total, 6),
            "time_to_first_token_seconds": round(statistics.time_to_first_token, 6),
        },
    )
