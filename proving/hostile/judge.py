"""The judge of answers to hostile messages. A status must say what the caller did wrong, or that a
retry helps."""

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
from slipstream.reasons import Reason
from slipstream.rpc import item_answers
from slipstream.rpc.status import DOMAIN
from slipstream.sampling import faults, structure_errors

_MODULES = (errors, orchestrator_errors, codec, engine_errors, rules, item_answers, faults, structure_errors)

OUR_FAULT = (Code.UNKNOWN, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS, Code.UNIMPLEMENTED)
"""Statuses that no message may cause."""

MOST_MEMORY = 400 * 2**20
"""Most bytes of memory of the orchestrator during an attack."""

_WRITING = "Internal error from Core"
"""Text that grpc's client reports instead of the status, if it was still writing when the call
ended."""

_MOVED = (Code.UNAVAILABLE, Reason.SESSION_MOVED)
"""Status of a session that was deleted during a call. The process knows only that it does not own
the session."""


class Judge:
    """Counts statuses by service, and records answers that must not happen. Any thread may call
    it."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.statuses: Counter[tuple[str, str, str]] = Counter()
        """Counts by service, code and reason."""
        self.messages: Counter[str] = Counter()
        """Counts by service."""
        self._lock = threading.Lock()
        self._known = {(kind.code, kind.reason): kind for kind in _kinds() if hasattr(kind, "reason")}

    def complain(self, what: str) -> None:
        """Record something that must not happen."""
        with self._lock:
            self.complaints.append(what)

    def sent(self, service: str, count: int) -> None:
        """Count ``count`` messages that went to a service."""
        with self._lock:
            self.messages[service] += count

    def fine(self, service: str, count: int = 1) -> None:
        """Record an answer without an error."""
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
        """Record a call to ``where``, service and method, that ended with an error. ``malformed``:
        the request was not a message. ``huge``: it was larger than the limit. ``left``: the caller
        gave up."""
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
        """Record a status of a call or in band."""
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
