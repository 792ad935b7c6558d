"""What structures are refused for, before and while they are followed."""

from __future__ import annotations

from slipstream.errors import Code, FieldViolation, InvalidFieldsError, SlipstreamError


class InvalidStructureError(InvalidFieldsError):
    """The structure is not well formed, cannot be enforced, or describes no text at all."""

    reason = "INVALID_STRUCTURE"

    def __init__(self, why: str) -> None:
        super().__init__([FieldViolation("settings.structure", why)])


class StructureFailedError(SlipstreamError):
    """A structure that compiled came to a point that no token continues, or that costs more than
    the limits allow."""

    code = Code.FAILED_PRECONDITION
    reason = "STRUCTURE_FAILED"


class StructureUnsupportedError(SlipstreamError):
    """The bytes of the model's tokens cannot be told from its tokenizer, or it has no token to end
    a text with."""

    code = Code.UNIMPLEMENTED
    reason = "STRUCTURE_UNSUPPORTED"
