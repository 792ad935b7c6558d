"""The API page: services, messages and enums of the public protos, with their comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto

from tools.reference.descriptors import Commented, public_protos
from tools.reference.markdown import cell, generated, paragraph, table

_HEAD = """# API

The contract is the package `slipstream.v1` in
[protos/slipstream/v1](../../protos/slipstream/v1/orchestrator.proto). It only grows: `make check`
compares it with the released one, so clients of an older release keep working.
[Errors](errors.md) lists the reasons. [The Python client](../guides/python-client.md) and [other
languages](../guides/other-languages.md) show the first call.
"""

# The numbers by which a descriptor names its parts (google/protobuf/descriptor.proto).
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _INNER_ENUMS, _METHODS, _VALUES = 2, 3, 4, 2, 2

_SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}


_ERRORS = re.compile(r"\bErrors: ([A-Z_, \n]+)\.$")


def errors_of(comment: str) -> frozenset[str]:
    """Return the reasons that the comment of a method, or of a message, ends with."""
    found = _ERRORS.search(comment)
    return frozenset(found[1].replace(",", " ").split()) if found else frozenset()


def page() -> str:
    """Return the page."""
    protos = [one for one in public_protos() if not one.file.name.endswith("errors.proto")]
    parts = [generated("protos/slipstream/v1"), _HEAD]
    parts += [text for one in protos for text in _services(one)]
    parts.append("\n## Messages and enums\n")
    parts += [text for one in protos for text in _types(one)]
    return "".join(parts)


def _services(proto: Commented) -> Iterator[str]:
    for at, service in enumerate(proto.file.service):
        yield f"\n## {service.name}\n\n{_prose(proto.comment(_SERVICES, at))}"
        rows = []
        for number, method in enumerate(service.method):
            asked, told = _link(method.input_type), _link(method.output_type)
            asked = f"stream of {asked}" if method.client_streaming else asked
            told = f"stream of {told}" if method.server_streaming else told
            rows.append(
                [f"`{method.name}`", asked, told, cell(_linked(proto.comment(_SERVICES, at, _METHODS, number)))]
            )
        yield table(["method", "request", "response", "meaning"], rows)


def _linked(comment: str) -> str:
    """Return a comment whose list of errors leads to their page."""
    return _ERRORS.sub(r"[Errors](errors.md#for-callers): \1.", comment.strip())


def _types(proto: Commented) -> Iterator[str]:
    for at, message in enumerate(proto.file.message_type):
        yield from _message(proto, message, (_MESSAGES, at), message.name)
    for at, enum in enumerate(proto.file.enum_type):
        yield _enum(proto, enum, (_ENUMS, at), enum.name)


def _message(proto: Commented, message: DescriptorProto, path: tuple[int, ...], name: str) -> Iterator[str]:
    if message.options.map_entry:
        return
    yield f"\n### {name}\n\n{_prose(proto.comment(*path))}"
    if message.field:
        yield table(["field", "type", "meaning"], _fields(proto, message, path))
    for at, inner in enumerate(message.nested_type):
        yield from _message(proto, inner, (*path, _NESTED, at), f"{name}.{inner.name}")
    for at, enum in enumerate(message.enum_type):
        yield _enum(proto, enum, (*path, _INNER_ENUMS, at), f"{name}.{enum.name}")


def _fields(proto: Commented, message: DescriptorProto, path: tuple[int, ...]) -> Iterator[list[str]]:
    for at, field in enumerate(message.field):
        meaning = proto.comment(*path, _FIELDS, at)
        if field.HasField("oneof_index") and not field.proto3_optional:
            meaning = f"One of `{message.oneof_decl[field.oneof_index].name}`. {meaning}"
        yield [f"`{field.name}`", _type(field, message.nested_type), cell(meaning)]


def _type(field: FieldDescriptorProto, nested: Sequence[DescriptorProto]) -> str:
    name = _SCALARS.get(field.type) or _link(field.type_name)
    for entry in nested:
        if entry.options.map_entry and field.type_name.endswith(f".{entry.name}"):
            key, value = (_SCALARS.get(part.type) or _link(part.type_name) for part in entry.field)
            return f"map of {key} to {value}"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _enum(proto: Commented, enum: EnumDescriptorProto, path: tuple[int, ...], name: str) -> str:
    rows = [
        [f"`{value.name}`", str(value.number), cell(proto.comment(*path, _VALUES, at))]
        for at, value in enumerate(enum.value)
    ]
    return f"\n### {name}\n\n{_prose(proto.comment(*path))}{table(['value', 'number', 'meaning'], rows)}"


def _prose(comment: str) -> str:
    return "".join(f"{paragraph(_linked(part))}\n" for part in comment.split("\n\n") if part.strip())


def _link(type_name: str) -> str:
    name = type_name.removeprefix(".slipstream.v1.")
    if name == type_name:
        return f"`{type_name.removeprefix('.')}`"
    return f"[{name}](#{name.lower().replace('.', '')})"
