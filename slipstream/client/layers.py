"""Settings in layers, merged as the server merges a message's over its session's.

The client merges where it resumes a session with settings of its own: they lie between the
session's and a message's.
"""

from __future__ import annotations

from google.protobuf.message import Message

from slipstream.v1 import generation_pb2

_LAID_FIELD_BY_FIELD = ("sampling", "speculation")


def layered(
    upper: generation_pb2.GenerationSettings, lower: generation_pb2.GenerationSettings
) -> generation_pb2.GenerationSettings:
    """Return the settings of ``upper``, and those of ``lower`` where ``upper`` has none. Fields
    that either clears stay cleared, unless ``upper`` sets them."""
    merged = generation_pb2.GenerationSettings()
    merged.CopyFrom(lower)
    for path in upper.cleared.paths:
        _clear(merged, path.split("."))
    _lay(upper, merged)
    paths = [*upper.cleared.paths, *(path for path in lower.cleared.paths if not _says(upper, path.split(".")))]
    merged.ClearField("cleared")
    if paths:
        merged.cleared.paths.extend(dict.fromkeys(paths))
    return merged


def _lay(upper: Message, merged: Message) -> None:
    for field, value in upper.ListFields():
        if field.name in _LAID_FIELD_BY_FIELD:
            _lay(value, getattr(merged, field.name))
        elif field.is_repeated or field.message_type is not None:  # a list or a structure is replaced whole
            merged.ClearField(field.name)
            getattr(merged, field.name).MergeFrom(value)
            if not field.is_repeated:
                getattr(merged, field.name).SetInParent()
        else:
            setattr(merged, field.name, value)


def _clear(message: Message, path: list[str]) -> None:
    name, *rest = path
    if not rest:
        message.ClearField(name)
    elif message.HasField(name):
        _clear(getattr(message, name), rest)


def _says(message: Message, path: list[str]) -> bool:
    name, *rest = path
    said = {field.name: value for field, value in message.ListFields()}
    return name in said and (not rest or _says(said[name], rest))
