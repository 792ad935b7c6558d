"""Judges answers to hostile messages.

A status must say that the caller erred and how, or that it helps to ask again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from orchestrator import errors as orchestrator_errors
from orchestrator.sessions.conversation import codec
from slipstream import errors
from slipstream.engine import errors as engine_errors
from slipstream.errors import Code, InvalidFieldsError, SlipstreamError
from slipstream.hosting import rules
from slipstream.rpc import item_answers
from slipstream.rpc.status import DOMAIN
from slipstream.sampling import faults, structure_errors

_MODULES = (errors, orchestrator_errors, codec, engine_errors, rules, item_answers, faults, structure_errors)

OUR_FAULT = (Code.UNKNOWN, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS, Code.UNIMPLEMENTED)
"""No message may bring these about."""

MOST_MEMORY = 400 * 2**20
"""Bytes of memory that the orchestrator may have beside an attack."""

_WRITING = "Internal error from Core"
"""Text that grpc's own client gives in place of the status, if it was still writing when a call was
ended."""

_MOVED = (Code.UNAVAILABLE, "SESSION_MOVED")
"""Status of a session that was deleted in the middle of a call: the process knows only that it does
not own it."""


class Judge:
    """Counts statuses by service, and keeps what must not have been answered. Callable from any
    thread."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.statuses: Counter[tuple[str, str, str]] = Counter()
        """By service, code and reason."""
        self.messages: Counter[str] = Counter()
        """By service."""
        self._lock = threading.Lock()
        self._known = {(kind.code, kind.reason): kind for kind in _kinds() if hasattr(kind, "reason")}

    def complain(self, what: str) -> None:
        """Something that must not be."""
        with self._lock:
            self.complaints.append(what)

    def sent(self, service: str, count: int) -> None:
        """Count ``count`` messages that went to a service."""
        with self._lock:
            self.messages[service] += count

    def fine(self, service: str, count: int = 1) -> None:
        """Answered without an error."""
        with self._lock:
            self.statuses[service, "OK", ""] += count

    def call_ended(
        self,
        where: str,
        error: grpc.aio.AioRpcError,
        *,
        malformed: bool = False,
        huge: bool = False,
        left: bool = False,
    ) -> None:
        """A call to ``where``, service and method, ended with an error.

        ``malformed``: what was sent was no message; ``huge``: more than is read; ``left``: the
        caller gave up itself.
        """
        service = where.partition("/")[0]
        code = Code(error.code().value[0])
        if left and code in (Code.CANCELLED, Code.DEADLINE_EXCEEDED):
            self._count(service, code, "the caller left")
            return
        if huge and code is Code.RESOURCE_EXHAUSTED:
            self._count(service, code, "larger than is read")
            return
        if (malformed or huge or left) and error.details() == _WRITING:
            self._count(service, code, "the call was over while the caller wrote")
            return
        status = rpc_status.from_call(error)  # type: ignore[arg-type]
        if status is None:
            self._count(service, code, "no details")
            self.complain(f"{where}: {code.name} without details: {error.details()}")
            return
        self.status(where, status, malformed=malformed)

    def status(self, where: str, status: status_pb2.Status, *, malformed: bool = False) -> None:
        """A status of a call or in band."""
        service = where.partition("/")[0]
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        found = {detail.type_url.rpartition(".")[2] for detail in status.details}
        for detail in status.details:
            for known in (info, bad, retry):
                if detail.Is(known.DESCRIPTOR):
                    detail.Unpack(known)
        code = Code(status.code)
        self._count(service, code, info.reason)
        kind = self._known.get((code, info.reason))
        faults = {
            "is our fault": code in OUR_FAULT and (code, info.reason) != _MOVED,
            "has no reason of ours": info.domain != DOMAIN or kind is None,
            "names no field": info.reason == InvalidFieldsError.reason and not bad.field_violations,
            "does not say when to ask again": kind is not None
            and kind.retry_after is not None
            and "RetryInfo" not in found,
            "is RESOURCE_EXHAUSTED without a RetryInfo": code is Code.RESOURCE_EXHAUSTED and "RetryInfo" not in found,
            "is not what bytes without a meaning are": malformed and code is not Code.INVALID_ARGUMENT,
        }
        for what, is_so in faults.items():
            if is_so:
                self.complain(f"{where}: {code.name} {info.reason} {what}: {status.message}")

    def _count(self, service: str, code: Code, reason: str) -> None:
        with self._lock:
            self.statuses[service, code.name, reason] += 1


def _kinds() -> Iterator[type[SlipstreamError]]:
    """Yield every kind of error that a caller may get."""
    for module in _MODULES:
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, SlipstreamError) and kind is not SlipstreamError:
                yield kind
