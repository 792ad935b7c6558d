"""Hostile messages made from their descriptors alone, so a new field is covered without a line of
code.

Everything is drawn from one `random.Random`. So a seed determines what is sent, and a property test
may bring its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_INT32, _INT64 = 2**31, 2**63
_SMALL = (0, 1, -1, 2, 3, 7, 8, 64, 65, 128, 258, 259, 512, 1024, 8192)
_INTS = {
    FieldDescriptor.CPPTYPE_INT32: (*_SMALL, _INT32 - 1, -_INT32),
    FieldDescriptor.CPPTYPE_INT64: (*_SMALL, _INT32, _INT64 - 1, -_INT64, 253402300800, -62135596801),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, _INT32, 2 * _INT32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, _INT64, 2 * _INT64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (0, 1, 2, 3, 4, 99, -1, _INT32 - 1, -_INT32),
}
_FLOATS = (0.0, -0.0, 0.5, 1.0, -1.0, 2.0, 1e-45, 1e-6, 1e-38, 3e38, -3e38, float("nan"), float("inf"), float("-inf"))

STRUCTURE_SOURCES = (
    "{}",
    '{"type": "object"}',
    '{"type": "object", "properties": {"a": {"$ref": "#"}}}',
    '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}',
    '{"type": 7}',
    '{"enum": []}',
    '{"minimum": 1e400, "type": "number"}',
    '{"minLength": 9223372036854775807, "type": "string"}',
    '{"pattern": "(", "type": "string"}',
    '{"multipleOf": 1e-300, "type": "number"}',
    '{"type": "integer", "minimum": -1e308, "maximum": 1e308}',
    "[" * 2000,
    '{"a":' * 1500 + "1" + "}" * 1500,
    "\ufeff{}",
    "NaN",
    "a{1000}{1000}{1000}",
    "(a|b|ab)*" * 40,
    "(?i)\\p{L}{1,500}",
    "\\x{110000}",
    "[^\\x{0}-\\x{10FFFF}]",
    "(?=a)b",
    "(a*)*b",
    "^$",
    "start: start",
    'start: "a" start | ""',
    'start: "a" b\nb: "b" start |',
    "start: /(/",
    "start: X\nX: X",
    "start: %json {",
    "%llguidance {}",
    "start: <|im_end|>",
    'start: a{0,100000}\na: "x"',
)
"""Texts for a structure's fields, valid and invalid."""

_TEXTS = (
    "",
    " ",
    "x",
    "What does len do?",
    "\0",
    "a\0b",
    "\n\r\t\x7f\x1b[2J",
    "\ud7ff\ue000\uffff\U0010ffff",
    "\u202e\u200d\ufeff\u0301" * 8,
    "e\u0301" * 100,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 20,
    "\ufdfa" * 50,
    "<|im_start|>system\n<|im_end|>",
    "{{ messages }}{% raise_exception('x') %}",
    "%s%n%x",
    "'; DROP TABLE sessions; --",
    "../../../../etc/passwd",
    "00-" + "f" * 32 + "-" + "f" * 16 + "-01",
    "00-" + "0" * 32 + "-" + "0" * 16 + "-00",
    "deadbeef" * 4,
    "x" * 16,
    "x" * 64,
    "x" * 65,
    "x" * 128,
    "x" * 129,
    "y" * 5000,
    "AAAAAAAAAAA=",
    "gAAAAAAAAAA=",
    "f/////////8A",
    "=",
    "sampling",
    "sampling.temperature",
    "max_token_count",
    "no.such.field",
)
_LONG_TEXT_ODDS, _MANY_ODDS = 0.004, 0.004
_MANY = (70, 600, 9000)
_DEEPEST = 5


class FieldSource:
    """Draws values and whole messages."""

    def __init__(self, rng: random.Random, known: Sequence[str] = ()) -> None:
        """``known`` are names that mean something to the service, such as ids of sessions and
        handles."""
        self.rng = rng
        self.known = known

    def arbitrary(self, message: Message, depth: int = 0) -> None:
        """Set some fields of an empty message at random."""
        for field in message.DESCRIPTOR.fields:
            if self.rng.random() > 0.6:
                self._set(message, field, depth)

    def spoil(self, message: Message) -> None:
        """Change one to three fields anywhere in a message, set or not."""
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            place = self._somewhere(message)
            if place.DESCRIPTOR.fields:
                self._set(place, self.rng.choice(place.DESCRIPTOR.fields), 0)

    def value(self, field: FieldDescriptor) -> Any:
        """Return a value that fits the field's wire type and perhaps nothing else."""
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self.rng.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return self.rng.choice(_FLOATS)
        if kind == FieldDescriptor.CPPTYPE_STRING:
            text = self._text()
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        return self.rng.choice(_INTS[kind])

    def _text(self) -> str:
        chance = self.rng.random()
        if chance < _LONG_TEXT_ODDS:
            return "long " * self.rng.choice((2000, 20_000, 200_000))
        if self.known and chance < 0.3:
            return self.rng.choice(self.known)
        return self.rng.choice(STRUCTURE_SOURCES if chance > 0.7 else _TEXTS)

    def _count(self) -> int:
        return self.rng.choice(_MANY) if self.rng.random() < _MANY_ODDS else self.rng.choice((0, 1, 1, 2, 5))

    def _set(self, message: Message, field: Any, depth: int) -> None:
        if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            if not field.is_repeated:
                setattr(message, field.name, self.value(field))
                return
            values = getattr(message, field.name)
            del values[:]
            values.extend(self.value(field) for _ in range(self._count()))
        elif _is_map(field):
            keys, values = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            for _ in range(self._count()):
                getattr(message, field.name)[self.value(keys)] = self.value(values)
        elif field.is_repeated:
            parts = getattr(message, field.name)
            del parts[:]
            for _ in range(min(self._count(), 600)):
                part = parts.add()
                if depth < _DEEPEST:
                    self.arbitrary(part, depth + 1)
        else:
            part = getattr(message, field.name)
            part.SetInParent()
            if depth < _DEEPEST:
                self.arbitrary(part, depth + 1)

    def _somewhere(self, message: Message) -> Message:
        """Return the message or one that is set within it."""
        inner: list[Message] = []
        for field, value in message.ListFields():
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE and not _is_map(field):
                inner += list(value) if field.is_repeated else [value]
        return message if not inner or self.rng.random() < 0.3 else self._somewhere(self.rng.choice(inner))

    def bytes_of(self, data: bytes) -> bytes:
        """Return a message's bytes damaged at random: cut, flipped, extended, nested without end,
        or unchanged."""
        how = self.rng.randrange(6)
        if how == 0:
            return data[: self.rng.randrange(len(data) + 1)]
        if how == 1 and data:
            at = self.rng.randrange(len(data))
            return data[:at] + bytes([data[at] ^ (1 << self.rng.randrange(8))]) + data[at + 1 :]
        if how == 2:  # a field that no version has: 15000 as a varint, as a string
            return data + self.rng.choice((b"\xc0\xa9\x07\x01", b"\xc2\xa9\x07\x03abc"))
        if how == 3:  # groups in groups
            return data + b"\x0b" * self.rng.choice((10, 90, 200, 20_000))
        if how == 4:
            return data + data
        return self.rng.randbytes(self.rng.choice((1, 3, 20, 300)))


def is_message(kind: type[Message], data: bytes) -> bool:
    """Return True if bytes can be parsed as this kind of message."""
    try:
        kind.FromString(data)
    except Exception:  # DecodeError has no common root in all of protobuf's implementations
        return False
    return True


def _is_map(field: FieldDescriptor) -> bool:
    kind: Descriptor | None = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)
