"""JSON Schemas of the service's responses in protobuf's JSON, for documents such as OpenAPI's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from slipstream.v1 import orchestrator_pb2

_SERVICE = orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"]

_WELL_KNOWN: Mapping[str, dict[str, Any]] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?s$"},
    "google.protobuf.FieldMask": {"type": "string"},
    "google.protobuf.Any": {"type": "object"},
}
_INTEGER = {"type": "integer"}
_LONG = {"type": "string", "format": "int64", "pattern": "^-?[0-9]+$"}
_FLOAT = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
_SCALARS: Mapping[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "format": "byte"},
    FieldDescriptor.TYPE_DOUBLE: _FLOAT,
    FieldDescriptor.TYPE_FLOAT: _FLOAT,
    FieldDescriptor.TYPE_INT32: _INTEGER,
    FieldDescriptor.TYPE_UINT32: _INTEGER,
    FieldDescriptor.TYPE_INT64: _LONG,
    FieldDescriptor.TYPE_UINT64: _LONG,
}


def response_schema(method: str) -> dict[str, Any]:
    """Return the schema of a method's response. Fields that have their default are left out of a
    response, so none is required."""
    return _message(_SERVICE.methods_by_name[method].output_type)


def _message(message: Descriptor) -> dict[str, Any]:
    if message.full_name in _WELL_KNOWN:
        return _WELL_KNOWN[message.full_name]
    fields = {field.json_name: _field(field) for field in message.fields}
    return {"type": "object", "title": message.name, "properties": fields, "additionalProperties": False}


def _field(field: FieldDescriptor) -> dict[str, Any]:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _single(message.fields_by_name["value"])}
    single = _single(field)
    return {"type": "array", "items": single} if field.is_repeated else single


def _single(field: FieldDescriptor) -> dict[str, Any]:
    if field.message_type is not None:
        return _message(field.message_type)
    if field.enum_type is not None:
        # A number stands for a value that this version does not know.
        return {"anyOf": [{"enum": [value.name for value in field.enum_type.values]}, _INTEGER]}
    return _SCALARS[field.type]
