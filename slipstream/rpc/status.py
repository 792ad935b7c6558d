"""Conversion of errors to google.rpc.Status and back."""

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

# grpc refuses trailers over 8 KiB, and the error is lost with them. Trailers hold a status twice:
# its message percent-encoded, and the whole status in base64. Both stay below 6 KiB here.
_MESSAGE_BYTES = 1024
_VIOLATIONS_BYTES = 1536
_VALUE_BYTES = 256
_METADATA_COUNT = 4
_LONGEST_CHARACTER = 12
"""Bytes of a percent-encoded character of four bytes."""
_PLAIN = " !\"#$&'()*+,-./:;<=>?@[]^`{|}~"
"""Characters that a grpc-message does not encode, besides letters and digits."""
_ELLIPSIS = "…"


class PeerError(SlipstreamError):
    """An error that a peer answered, with the peer's code, reason, metadata, violations and
    retry_after."""

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
    """The stream ended before the answer came. The caller reconnects and states its position again;
    nothing is lost."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, Reason.STREAM_LOST, message)


def status_of(error: BaseException) -> status_pb2.Status:
    """Return the status that a client gets for an error.

    An error that is not a SlipstreamError is logged with its traceback and becomes INTERNAL.
    """
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
    """Return the first violations that have room, each shortened, and the number of the others."""
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
    """Return the beginning of a text that takes at most ``most`` percent-encoded bytes."""
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
    """Return the error of a peer's status. An invalid code, also 0, becomes UNKNOWN."""
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
    """Return the error of a failed call. Details that cannot be read are ignored."""
    try:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]
        if status is not None:
            return error_of(status)
    except (ValueError, DecodeError):  # invalid details, or those of another status: grpc's own text counts
        log.debug("a status has details that cannot be read")
    code = _code_of(error.code().value[0])
    return PeerError(code, code.name, error.details() or code.name)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """End a call with the status of an error."""
    report_error(error)
    await context.abort_with_status(rpc_status.to_status(status_of(error)))
    raise AssertionError("abort_with_status always raises")


async def abort_as(context: grpc.aio.ServicerContext[Any, Any], error: grpc.aio.AioRpcError) -> NoReturn:
    """End a call as the forwarded call ended, with the same details."""
    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
