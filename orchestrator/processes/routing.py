"""The session that a request is about, and the process that owns it.

The descriptors say which requests name a session, so a new method is routed without new code. A
session that an earlier attempt of a request created is found by its ``request_id``: the retry
reaches the process that answered before.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.durability.takeover import Takeover
from orchestrator.store.rows import OwnerRow
from slipstream.v1 import orchestrator_pb2, turn_pb2

_SERVICE = orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"]
_SESSION, _REQUEST = "session_id", "request_id"

_UNLISTED = frozenset({"Generate"})
"""Methods that create sessions which `ListSessions` leaves out."""

_OPERATORS_SEE_ALL = frozenset({"GetTurnTraces"})
"""Methods that an operator may call about any tenant's session."""


class Route:
    """The way in which one method's requests name their session."""

    def __init__(self, method: MethodDescriptor) -> None:
        self.name = method.name
        self.path = f"/{_SERVICE.full_name}/{method.name}"
        self.request_class = GetMessageClass(method.input_type)
        self.response_class = GetMessageClass(method.output_type)
        fields = method.input_type.fields_by_name
        self._command = _command_with_session(method.input_type)
        """The field of a stream's first request whose message names a session; None if there is
        none."""
        self._names_session = _SESSION in fields
        self._names_request = _REQUEST in fields
        self._creates_session = "session" in method.output_type.fields_by_name
        self.is_turn = self._names_session and _is_turn_event(method.output_type.fields_by_name.get("event"))
        """True if the responses are the events of one turn, which `WatchTurn` can continue."""

    @property
    def is_local(self) -> bool:
        """True if every process can answer by itself."""
        return not (self._names_session or self._names_request)

    def happens_twice(self, request: Any) -> bool:
        """Return True if the request has no id by which a second attempt would be recognised."""
        return self._names_request and not request.request_id

    async def owner(self, request: Any, caller: Principal, directory: Takeover) -> OwnerRow | None:
        """Return the process that has to answer a request; None if it is this one.

        A session of another principal is not found: this process refuses the request itself.
        Raises what `Takeover.locate` raises.
        """
        session_id = self._session_id(request)
        if session_id is None:
            return await directory.locate_request(request.request_id, caller.name, listed=self.name not in _UNLISTED)
        if self._creates_session and self._names_request:
            return await directory.locate_fork(session_id, request.request_id, caller.name)
        sees_all = caller.operator and self.name in _OPERATORS_SEE_ALL
        return await directory.locate(session_id, None if sees_all else caller.name)

    def _session_id(self, request: Any) -> str | None:
        if self._names_session:
            return str(request.session_id)
        if self._command is not None and request.HasField(self._command):
            command = getattr(request, self._command)
            return str(command.session_id) if command.HasField(_SESSION) else None
        return None


def _command_with_session(request: Descriptor) -> str | None:
    for field in request.fields:
        named = None if field.message_type is None else field.message_type.fields_by_name.get(_SESSION)
        if named is not None and named.has_presence and not field.is_repeated:
            return str(field.name)
    return None


def _is_turn_event(field: FieldDescriptor | None) -> bool:
    return field is not None and field.message_type is turn_pb2.TurnEvent.DESCRIPTOR


_ROUTES = [Route(method) for method in _SERVICE.methods]
ROUTES = {route.path: route for route in _ROUTES if not route.is_local}
"""The routes of the methods that another process may have to answer, by their paths."""

WATCH_TURN = ROUTES[f"/{_SERVICE.full_name}/WatchTurn"]
