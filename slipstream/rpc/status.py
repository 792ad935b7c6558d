"""Errors to google.rpc.Status and back: the one place where the two meet."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn
from urllib.parse import quote

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from slipstream.errors import Code, FieldViolation, SlipstreamError
from slipstream.reasons import Reason
from slipstream.rpc.error_reports import report_error
from slipstream.rpc.wire import seconds

log = logging.getLogger(__name__)

DOMAIN = "slipstream"

# grpc refuses trailers past 8 KiB, and what was wrong is lost with them. A status travels in them
# twice: its message percent-encoded, and all of it in base64, a third longer. These bounds keep the
# two together below 6 KiB.
_MESSAGE_BYTES = 1024
_VIOLATIONS_BYTES = 1536
_VALUE_BYTES = 256
_METADATA_COUNT = 4
_LONGEST_CHARACTER = 12
"""A character of four bytes, percent-encoded."""
_PLAIN = " !\"#$&'()*+,-./:;<=>?@[]^`{|}~"
"""What stays as it is in a grpc-message, besides letters and digits."""
_ELLIPSIS = "…"


class PeerError(SlipstreamError):
    """What a peer answered instead of a result. Its code, reason, metadata, violations and
    retry_after are the peer's."""

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
    """The stream ended before the answer came. Nothing is lost: reconnect and state the position
    again."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, Reason.STREAM_LOST, message)


def status_of(error: BaseException) -> status_pb2.Status:
    """The status a client gets for an error. What is not a SlipstreamError is our fault: logged
    whole, INTERNAL."""
    if not isinstance(error, SlipstreamError):
        log.error("unexpected error", exc_info=error)
        error = SlipstreamError(f"internal error: {type(error).__name__}")
    shown, hidden_count = _shown(error.violations)
    metadata = {name: _cut(value, _VALUE_BYTES) for name, value in islice(error.metadata.items(), _METADATA_COUNT)}
    if hidden_count:
        metadata["more_violation_count"] = str(hidden_count)
    status = status_pb2.Status(code=int(error.code), message=_message(error, hidden_count))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata))
    if shown:
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=shown))
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def _shown(violations: Sequence[FieldViolation]) -> tuple[list[error_details_pb2.BadRequest.FieldViolation], int]:
    """The first violations, as many as have room, each cut short; and how many more there are."""
    shown: list[error_details_pb2.BadRequest.FieldViolation] = []
    left = _VIOLATIONS_BYTES
    for violation in violations:
        message = error_details_pb2.BadRequest.FieldViolation(
            field=_cut(violation.field, _VALUE_BYTES), description=_cut(violation.description, _VALUE_BYTES)
        )
        left -= message.ByteSize()
        if left < 0:
            break
        shown.append(message)
    return shown, len(violations) - len(shown)


def _message(error: SlipstreamError, hidden_count: int) -> str:
    text = _cut(str(error), _MESSAGE_BYTES)
    return f"{text} ({hidden_count} more are not listed)" if hidden_count else text


def _cut(text: str, most: int) -> str:
    """The text, or as much of its beginning as takes ``most`` bytes in a trailer,
    percent-encoded."""
    if len(text) * _LONGEST_CHARACTER <= most or len(quote(text, safe=_PLAIN)) <= most:
        return text
    kept, left = 0, most - len(quote(_ELLIPSIS))
    for character in text:
        left -= len(quote(character, safe=_PLAIN))
        if left < 0:
            break
        kept += 1
    return text[:kept] + _ELLIPSIS


def error_of(status: status_pb2.Status) -> PeerError:
    """The error a peer's status means; a code that is none, 0 too since there is an error, is
    UNKNOWN."""
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for detail in status.details:
        for known in (info, bad, retry):
            if detail.Is(known.DESCRIPTOR):
                detail.Unpack(known)
    code = _code_of(status.code)
    return PeerError(
        code,
        info.reason or code.name,
        status.message,
        info.metadata,
        [FieldViolation(violation.field, violation.description) for violation in bad.field_violations],
        seconds(retry.retry_delay) if retry.HasField("retry_delay") else None,
    )


def _code_of(number: int) -> Code:
    try:
        return Code(number)
    except ValueError:
        return Code.UNKNOWN


def error_of_call(error: grpc.aio.AioRpcError) -> PeerError:
    """The error a failed call means, whatever it has for details."""
    try:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]
        if status is not None:
            return error_of(status)
    except (ValueError, DecodeError):  # details that are none, or of another status: what grpc says itself stands
        log.debug("a status has details that cannot be read")
    code = _code_of(error.code().value[0])
    return PeerError(code, code.name, error.details() or code.name)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """End a call with an error's status."""
    report_error(error)
    await context.abort_with_status(rpc_status.to_status(status_of(error)))
    raise AssertionError("abort_with_status always raises")


async def abort_as(context: grpc.aio.ServicerContext[Any, Any], error: grpc.aio.AioRpcError) -> NoReturn:
    """End a call the way that the call it was passed on to ended, details and all."""
    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
