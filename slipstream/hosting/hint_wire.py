"""Hints as messages."""

from __future__ import annotations

from slipstream.engine.hinting.hints import Hint, Source
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.wire.v1 import hint_pb2

_SOURCES: dict[int, Source] = {source.value: source for source in Source}


def hint_message(hint: Hint) -> hint_pb2.Hint:
    """Return a hint as a message."""
    message = hint_pb2.Hint(
        start=hint.start,
        tokens=hint.tokens,
        survivals=hint.survivals,
        source=hint.source.value,  # type: ignore[arg-type]  # the two enums have the same numbers
        source_id=hint.source_id,
        length_seen=hint.length_seen,
    )
    if hint.next_due is not None:
        message.next_due.FromNanoseconds(int(hint.next_due * 1e9))
    return message


def hint_of(message: hint_pb2.Hint, vocabulary_size: int) -> Hint:
    """Return the hint of a message. InvalidFieldsError if no hint can have its values."""
    for token in message.tokens:
        if not 0 <= token < vocabulary_size:
            raise InvalidFieldsError(
                [FieldViolation("hint.tokens", f"must be from 0 to {vocabulary_size - 1}, but one is {token}")]
            )
    source = _SOURCES.get(message.source)
    if source is None:
        raise InvalidFieldsError([FieldViolation("hint.source", f"must be a known source, not {message.source}")])
    try:
        return Hint(
            start=message.start,
            tokens=tuple(message.tokens),
            survivals=tuple(message.survivals),
            source=source,
            source_id=message.source_id,
            length_seen=message.length_seen,
            next_due=message.next_due.ToNanoseconds() / 1e9 if message.HasField("next_due") else None,
        )
    except ValueError as error:
        raise InvalidFieldsError([FieldViolation("hint", str(error))]) from error
