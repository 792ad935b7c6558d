"""Reasons for which structures are refused, before and while they are followed."""

from __future__ import annotations

from slipstream.errors import FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.reasons import Reason


class InvalidStructureError(InvalidFieldsError):
    """The structure is not well formed, cannot be enforced, or describes no text at all.

    ``rule`` is the grammar's rule whose JSON schema is wrong, if that is known.
    """

    reason = Reason.INVALID_STRUCTURE

    def __init__(self, why: str, rule: str = "") -> None:
        super().__init__([FieldViolation("settings.structure", why)])
        self.rule = rule
        if rule:
            self.metadata["rule"] = rule


class StructureFailedError(SlipstreamError):
    """A structure that compiled came to a point that no token continues, or that costs more than
    the limits allow."""

    reason = Reason.STRUCTURE_FAILED


class StructureUnsupportedError(SlipstreamError):
    """The bytes of the model's tokens cannot be told from its tokenizer, or it has no token to end
    a text with."""

    reason = Reason.STRUCTURE_UNSUPPORTED
