"""Errors to google.rpc.Status and back: the one place where the two meet."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from slipstream.errors import Code, FieldViolation, SlipstreamError
from slipstream.rpc.wire import seconds

log = logging.getLogger(__name__)

DOMAIN = "slipstream"


class PeerError(SlipstreamError):
    """What a peer answered instead of a result. Its code, reason, metadata, violations and retry_after are the peer's."""

    def __init__(
        self,
        code: Code,
        reason: str,
        message: str,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[FieldViolation] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, violations)
        self.metadata = dict(metadata or {})
        self.code = code  # type: ignore[misc]
        self.reason = reason  # type: ignore[misc]
        self.retry_after = retry_after  # type: ignore[misc]


class StreamLostError(PeerError):
    """The stream ended before the answer came. Nothing is lost: reconnect and state the position again."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, "STREAM_LOST", message)


def status_of(error: BaseException) -> status_pb2.Status:
    """The status a client gets for an error. What is not a SlipstreamError is our fault: logged whole, INTERNAL."""
    if not isinstance(error, SlipstreamError):
        log.error("unexpected error", exc_info=error)
        error = SlipstreamError(f"internal error: {type(error).__name__}")
    status = status_pb2.Status(code=int(error.code), message=str(error))
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    status.details.add().Pack(info)
    if error.violations:
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
            for v in error.violations
        ]
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=violations))
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def error_of(status: status_pb2.Status) -> PeerError:
    """The error a peer's status means."""
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for detail in status.details:
        _ = detail.Unpack(info) or detail.Unpack(bad) or detail.Unpack(retry)
    return PeerError(
        Code(status.code),
        info.reason or Code(status.code).name,
        status.message,
        info.metadata,
        [FieldViolation(violation.field, violation.description) for violation in bad.field_violations],
        seconds(retry.retry_delay) if retry.HasField("retry_delay") else None,
    )


def error_of_call(error: grpc.aio.AioRpcError) -> PeerError:
    """The error a failed call means."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    if status is not None:
        return error_of(status)
    code = Code(error.code().value[0])
    return PeerError(code, code.name, error.details() or code.name)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """End a call with an error's status."""
    await context.abort_with_status(rpc_status.to_status(status_of(error)))
    raise AssertionError("abort_with_status always raises")


async def abort_as(context: grpc.aio.ServicerContext[Any, Any], error: grpc.aio.AioRpcError) -> NoReturn:
    """End a call the way that the call it was passed on to ended, details and all."""
    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
