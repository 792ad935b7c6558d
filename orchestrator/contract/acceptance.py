"""Conversion of acceptance by hour into messages."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.contract.fields import timestamp
from orchestrator.store.acceptance import KEPT_HOURS
from orchestrator.store.acceptance_rows import AcceptanceRow, TargetChange
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.v1 import acceptance_pb2, orchestrator_pb2

_USUAL_HOURS = 8 * 24


def hour_count_of(request: orchestrator_pb2.GetAcceptanceHistoryRequest) -> int:
    """Return how many hours are asked for. InvalidFieldsError."""
    count = request.hour_count or _USUAL_HOURS
    if not 1 <= count <= KEPT_HOURS:
        raise InvalidFieldsError([FieldViolation("hour_count", f"must be from 0 to {KEPT_HOURS}, but is {count}")])
    return count


def history_message(rows: Sequence[AcceptanceRow]) -> orchestrator_pb2.GetAcceptanceHistoryResponse:
    """Return rows as a message."""
    return orchestrator_pb2.GetAcceptanceHistoryResponse(hours=map(_hour, rows))


def changes_message(changes: Sequence[TargetChange]) -> orchestrator_pb2.GetAcceptanceHistoryResponse:
    """Return changes of the target as a message."""
    return orchestrator_pb2.GetAcceptanceHistoryResponse(
        target_changes=[
            acceptance_pb2.TargetChange(
                since=timestamp(change.since),
                name=change.name,
                fingerprint=change.target,
                previous_fingerprint=change.before,
            )
            for change in changes
        ]
    )


def _hour(row: AcceptanceRow) -> acceptance_pb2.AcceptanceHour:
    key, counts = row.key, row.counts
    return acceptance_pb2.AcceptanceHour(
        hour=timestamp(row.hour * 3600.0),
        task=key.task,
        target_fingerprint=key.target,
        draft=key.draft,
        temperature_class=key.temperature,
        turn_count=counts.count,
        draft_token_count=int(counts.denominator),
        accepted_token_count=int(counts.numerator),
        draft_token_square_sum=int(counts.denominator_squares),
        product_sum=int(counts.products),
        accepted_token_square_sum=int(counts.numerator_squares),
    )
