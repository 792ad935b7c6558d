"""Rows of logits in which nothing can be chosen: an error by name, and never a token."""

from __future__ import annotations

import math

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason


class NoTokenToChooseError(SlipstreamError):
    """A rule leaves no token at a position (metadata: position)."""

    reason = Reason.NO_TOKEN_TO_CHOOSE


class LogitsNotFiniteError(SlipstreamError):
    """The model's logits hold NaN or infinity: nothing it computed there can be trusted."""

    reason = Reason.LOGITS_NOT_FINITE

    def __init__(self) -> None:
        super().__init__(
            "the model computed logits that are not finite numbers; its weights or its device may be damaged"
        )


def fault_of(largest: float, position: int) -> SlipstreamError | None:
    """Return the fault of a row by its ``largest`` filtered logit, which is NaN if any logit is;
    None if there is no fault."""
    if math.isfinite(largest):
        return None
    if largest == -math.inf:
        return NoTokenToChooseError(
            f"no token may be chosen at position {position}: allowed, banned and end tokens together leave none",
            position=position,
        )
    return LogitsNotFiniteError()
