"""Checks of the status that a peer gives for a failed item: it must be one that a model service can
have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from orchestrator.peers.checking.bounds import check_count, check_seconds
from orchestrator.peers.checking.faults import PeerFaultError
from slipstream.agreed import WIRE_VERSION
from slipstream.reasons import Audience, Code, Reason
from slipstream.rpc.status import DOMAIN, PeerError, error_of

ITEM_ERRORS: Final[Mapping[str, Code]] = {
    str(reason): reason.code for reason in Reason if Audience.ITEMS in reason.audience
}
"""The reasons for which a model service may refuse an item, with their codes."""

OF_THE_ITEM = frozenset({Reason.INVALID_FIELDS, Reason.INVALID_ITEM, Reason.STALE_ROUND, Reason.ROUND_CONFLICT})
"""Reasons that blame an item that this orchestrator made and checked. From a verifier they mean
that the verifier is wrong."""

_LONGEST_MESSAGE, _LONGEST_VALUE = 2048, 1024
_MOST_DETAILS = 16
_LONGEST_RETRY_SECONDS = 3600.0
_LONGEST_NUMBER = 10
"""Most digits of a token count."""


def checked_error(status: status_pb2.Status) -> PeerError:
    """Return the error of an item's status. PeerFaultError if no model service can give such a
    status."""
    if len(status.message) > _LONGEST_MESSAGE:
        raise PeerFaultError("error.message", f"must have at most {_LONGEST_MESSAGE} characters")
    check_count("error.details", status.details, _MOST_DETAILS)
    info, retry = _details(status)
    if info.domain != DOMAIN or info.reason not in ITEM_ERRORS:
        raise PeerFaultError("error.reason", "must be one of a model service's")
    if status.code != ITEM_ERRORS[info.reason]:
        code = ITEM_ERRORS[info.reason]
        raise PeerFaultError(
            "error.code", f"must be {int(code)} where the reason is {info.reason}, but is {status.code}"
        )
    check_count("error.metadata", info.metadata, _MOST_DETAILS)
    for value in (*info.metadata.keys(), *info.metadata.values()):
        check_count("error.metadata", value, _LONGEST_VALUE)
    if retry is not None:
        check_seconds("error.retry_delay", retry.retry_delay, _LONGEST_RETRY_SECONDS)
    length = info.metadata.get("cached_length", "0")
    if not (length.isascii() and length.isdigit() and len(length) <= _LONGEST_NUMBER):
        raise PeerFaultError("error.cached_length", "must be a count of tokens")
    if info.reason == Reason.WIRE_VERSION_MISMATCH:  # the service has been replaced since it was asked what it hosts
        raise PeerFaultError("wire_version", f"must be {WIRE_VERSION}, which this orchestrator speaks")
    return error_of(status)


def _details(status: status_pb2.Status) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo | None]:
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    has_retry = False
    try:
        for detail in status.details:
            for known in (info, bad, retry):
                if detail.Is(known.DESCRIPTOR):
                    detail.Unpack(known)
                    has_retry = has_retry or known is retry
    except DecodeError:
        raise PeerFaultError("error.details", "must be messages of their kind") from None
    return info, retry if has_retry else None
