"""Conversions of single fields: presence, enums, times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from slipstream.errors import FieldViolation, InvalidFieldsError

MeaningT = TypeVar("MeaningT")


def given(message: Message, field: str) -> Any:
    """Return a field's value; None if the client left it unset."""
    return getattr(message, field) if message.HasField(field) else None


def meaning(
    value: int, meanings: Mapping[Any, MeaningT], enum: Any, field: str, *, required: bool = False
) -> MeaningT | None:
    """Return the meaning of a value of an ``enum``; None for UNSPECIFIED, unless the field is
    ``required``. InvalidFieldsError for other values."""
    if value in meanings:
        return meanings[value]
    if value == 0 and not required:
        return None
    names = ", ".join(enum.Name(number) for number in meanings)
    said = enum.Name(value) if value in enum.values() else str(value)
    raise InvalidFieldsError([FieldViolation(field, f"must be one of {names}, but is {said}")])


def timestamp(when: float | datetime) -> Timestamp:
    """Convert seconds since the epoch, or a time."""
    message = Timestamp()
    message.FromMicroseconds(round((when if isinstance(when, float) else when.timestamp()) * 1e6))
    return message


def time_of(message: Message, field: str) -> datetime | None:
    """Return a field's time in UTC; None if the client left it unset. InvalidFieldsError if it
    is not a time."""
    if not message.HasField(field):
        return None
    try:
        when: datetime = getattr(message, field).ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidFieldsError([FieldViolation(field, f"must be a time from year 1 to 9999: {error}")]) from error
    return when
