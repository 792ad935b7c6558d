"""Log-probabilities under the target's own distribution: its logits before any of a rule is
applied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.sampling.kernel import Floats32
from slipstream.sampling.likeliest import likeliest
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.sampling.softmax import log_softmax


def logprobs_of(logits: Floats32, tokens: Sequence[int], top_counts: Sequence[int]) -> list[TokenLogprobs]:
    """Return for each row of ``logits`` ``[rows, vocabulary]`` its token's log-probability and the
    row's likeliest tokens, the lower token id first among equals.

    The log-softmax is taken in float32. A row's result does not depend on the other rows.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return [
            _of_row(log_softmax(row), token, count)
            for row, token, count in zip(logits, tokens, top_counts, strict=True)
        ]


def _of_row(logprobs: Floats32, token: int, count: int) -> TokenLogprobs:
    chosen = float(logprobs[token])
    if not count:
        return TokenLogprobs(token, chosen)
    top = likeliest(logprobs, min(count, len(logprobs)))
    return TokenLogprobs(token, chosen, tuple(zip(top.tolist(), logprobs[top].tolist(), strict=True)))
