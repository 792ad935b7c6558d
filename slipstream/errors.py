"""The base class of Slipstream's errors, and the errors that several packages raise.

An error has a reason (`slipstream.reasons`), the status code of that reason, and what would be
right. Nothing here imports grpc: `slipstream.rpc.status` converts errors to statuses and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from slipstream.reasons import Code, Reason

__all__ = [
    "Code",
    "FieldViolation",
    "InvalidFieldsError",
    "SlipstreamError",
    "TokenizerMismatchError",
    "WeightsMismatchError",
    "WireVersionError",
]


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A wrong field: its name as the client wrote it, and what would be right."""

    field: str
    description: str


class SlipstreamError(Exception):
    """Base of the errors that reach a client as a status.

    A subclass sets ``reason``, which brings its ``code``. ``metadata`` is for programs, the message
    for people. A ``retry_after`` in seconds says that a retry can help.
    """

    code: ClassVar[Code] = Code.INTERNAL
    reason: ClassVar[str] = Reason.INTERNAL
    retry_after: ClassVar[float | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if isinstance(cls.reason, Reason):
            cls.code = cls.reason.code

    def __init__(self, message: str, violations: Sequence[FieldViolation] = (), **metadata: str | int) -> None:
        super().__init__(message)
        self.violations = tuple(violations)
        self.metadata = {name: str(value) for name, value in metadata.items()}


class InvalidFieldsError(SlipstreamError):
    """A request has wrong fields: each by name, with what would be right."""

    reason = Reason.INVALID_FIELDS

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        super().__init__("; ".join(f"{v.field} {v.description}" for v in violations), violations)


class TokenizerMismatchError(SlipstreamError):
    """Draft and target, or caller and service, do not share a tokenizer."""

    reason = Reason.TOKENIZER_MISMATCH


class WeightsMismatchError(SlipstreamError):
    """A verifier does not host the weights that a session's tokens come from."""

    reason = Reason.WEIGHTS_MISMATCH


class WireVersionError(SlipstreamError):
    """Two services speak different wire versions (metadata: asked, own)."""

    reason = Reason.WIRE_VERSION_MISMATCH

    def __init__(self, asked: int, own: int) -> None:
        spoken = f"wire version {asked}" if asked else "no wire version, as releases before wire versions do,"
        super().__init__(
            f"the caller speaks {spoken} and this service {own}: upgrade the older one", asked=asked, own=own
        )
