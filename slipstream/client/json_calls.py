"""The service's methods by name, with requests and responses in protobuf's JSON. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from slipstream.client.requests import new_request_id
from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError
from slipstream.v1 import orchestrator_pb2

_SERVICE = orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"]


def request_from_json(method: str, given: Mapping[str, Any]) -> Any:
    """Return the request of a method. A request that has a request_id gets a random one if it is
    left out, so that it can be sent twice. PeerError if a field is unknown or has a wrong value."""
    request: Any = GetMessageClass(_SERVICE.methods_by_name[method].input_type)()
    try:
        ParseDict(dict(given), request)
    except (ParseError, RecursionError) as error:
        raise PeerError(Code.INVALID_ARGUMENT, Reason.INVALID_FIELDS, str(error)) from error
    if "request_id" in request.DESCRIPTOR.fields_by_name and not request.request_id:
        request.request_id = new_request_id()
    return request


def response_as_json(response: Message) -> dict[str, Any]:
    """Return a response. Numbers of 64 bits are texts, as protobuf's JSON has them."""
    return MessageToDict(response)
