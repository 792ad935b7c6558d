"""Schemas of responses in protobuf's JSON: a response with all of its fields fits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from slipstream.client.json_calls import response_as_json
from slipstream.client.json_schemas import response_schema
from slipstream.v1 import orchestrator_pb2

METHODS = sorted(orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"].methods_by_name)
KINDS: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


SCALARS: dict[int, Any] = {
    FieldDescriptor.CPPTYPE_STRING: "x",
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_DOUBLE: float("-inf"),
    FieldDescriptor.CPPTYPE_FLOAT: 0.5,
}


def filled(kind: Descriptor, *, last_first: bool) -> Any:
    """A message whose fields are set one after the other: of a oneof's the one that comes last."""
    message = GetMessageClass(kind)()
    for field in reversed(kind.fields) if last_first else kind.fields:
        fill(message, field, last_first=last_first)
    return message


def fill(message: Any, field: FieldDescriptor, *, last_first: bool) -> None:
    kind = field.message_type
    if kind is None:
        value = b"x" if field.type == FieldDescriptor.TYPE_BYTES else SCALARS.get(field.cpp_type, 7)
        value = field.enum_type.values[-1].number if field.enum_type is not None else value
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    elif kind.GetOptions().map_entry:
        entry = filled(kind, last_first=last_first)
        getattr(message, field.name)[entry.key] = entry.value
    elif kind.full_name == "google.protobuf.FieldMask":
        getattr(message, field.name).paths.append("sampling.temperature")
    elif kind.full_name != "google.protobuf.Any":  # its JSON needs a type that is known
        place = getattr(message, field.name)
        target = place.add() if field.is_repeated else place
        target.CopyFrom(filled(kind, last_first=last_first))
        target.SetInParent()


def misfits(schema: dict[str, Any], value: Any, path: str = "") -> list[str]:
    """Where a value does not fit a schema, for the keywords that the schemas use."""
    if "anyOf" in schema:
        return [] if any(not misfits(each, value) for each in schema["anyOf"]) else [path]
    if "enum" in schema:
        return [] if value in schema["enum"] else [path]
    expected = (int, float) if schema["type"] == "number" else KINDS[schema["type"]]
    if not isinstance(value, expected) or not re.search(schema.get("pattern", ""), str(value)):
        return [path]
    found: list[str] = []
    if isinstance(value, list):
        for each in value:
            found += misfits(schema["items"], each, f"{path}[]")
    for name, each in value.items() if isinstance(value, dict) else ():
        inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", {"type": "object"}))
        found += misfits(inner, each, f"{path}.{name}") if inner else [f"{path}.{name}"]
    return found


@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_response_with_all_of_its_fields_fits_its_schema(method: str, last_first: bool) -> None:
    service = orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"]
    response = filled(service.methods_by_name[method].output_type, last_first=last_first)
    assert misfits(response_schema(method), response_as_json(response)) == []


def test_an_unknown_field_and_a_wrong_kind_do_not_fit() -> None:
    schema = response_schema("GetTurnTraces")
    assert misfits(schema, {"turns": [{"turn": "7"}]}) == [".turns[].turn"]
    assert misfits(schema, {"other": 1}) == [".other"]
    assert misfits(schema, {"turns": [{"total": "7"}]}) == [".turns[].total"]
