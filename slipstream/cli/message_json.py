"""A message of the public contract as JSON, for programs that read a command's output."""

from __future__ import annotations

import json

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message


def message_json(message: Message) -> str:
    """Return a message as the contract's JSON on one line, zeros included."""
    return json.dumps(
        MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    )
