"""The root of everything Slipstream refuses: an error knows its status code, its reason and what
would be right.

Nothing here imports grpc: slipstream.rpc.status turns these errors into statuses and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class Code(IntEnum):
    """The canonical status codes in use, with google.rpc.Code's numbers."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One bad field: its name as the client wrote it, and what would be right."""

    field: str
    description: str


class SlipstreamError(Exception):
    """Base of the errors that reach a client as a status.

    ``code`` and ``reason`` belong to the class; ``metadata`` is for programs, the message for
    people. A ``retry_after`` in seconds says that a retry can help.
    """

    code: ClassVar[Code] = Code.INTERNAL
    reason: ClassVar[str] = "INTERNAL"
    retry_after: ClassVar[float | None] = None

    def __init__(self, message: str, violations: Sequence[FieldViolation] = (), **metadata: str | int) -> None:
        super().__init__(message)
        self.violations = tuple(violations)
        self.metadata = {name: str(value) for name, value in metadata.items()}


class InvalidFieldsError(SlipstreamError):
    """A request with bad fields: each by name, with what would be right."""

    code = Code.INVALID_ARGUMENT
    reason = "INVALID_FIELDS"

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        super().__init__("; ".join(f"{v.field} {v.description}" for v in violations), violations)


class TokenizerMismatchError(SlipstreamError):
    """Draft and target, or caller and service, do not share a tokenizer."""

    code = Code.FAILED_PRECONDITION
    reason = "TOKENIZER_MISMATCH"


class WeightsMismatchError(SlipstreamError):
    """A verifier does not host the weights that a session's tokens come from."""

    code = Code.FAILED_PRECONDITION
    reason = "WEIGHTS_MISMATCH"


class WireVersionError(SlipstreamError):
    """Two services speak other versions of the wire between them (metadata: asked, own)."""

    code = Code.FAILED_PRECONDITION
    reason = "WIRE_VERSION_MISMATCH"

    def __init__(self, asked: int, own: int) -> None:
        spoken = f"wire version {asked}" if asked else "no wire version, as releases before wire versions do,"
        super().__init__(
            f"the caller speaks {spoken} and this service {own}: upgrade the older one", asked=asked, own=own
        )
