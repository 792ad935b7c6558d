"""Log-probabilities under the target's own distribution: its logits before any of a rule is
applied."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.sampling.outcome import MAX_TOP_LOGPROB_COUNT, TokenLogprobs


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], top_counts: Sequence[int]) -> list[TokenLogprobs]:
    """For each row of ``logits`` ``[rows, vocabulary]`` its token's log-probability and the row's
    likeliest tokens, the lower token id first among equals.

    The log-softmax is taken in float32. A row's result does not depend on the other rows.
    """
    if not tokens:
        return []
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1)).squeeze(1).tolist()
    if not any(top_counts):
        return [TokenLogprobs(token, logprob) for token, logprob in zip(tokens, chosen, strict=True)]
    # Always as many: which of equals topk takes depends on how many it is asked for, and so would
    # depend on the batch.
    top = logprobs.topk(min(MAX_TOP_LOGPROB_COUNT, logprobs.shape[1]))
    entries = [
        tuple(sorted(zip(ids, values, strict=True), key=lambda entry: (-entry[1], entry[0])))
        for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
    return [
        TokenLogprobs(token, logprob, row[:count])
        for token, logprob, row, count in zip(tokens, chosen, entries, top_counts, strict=True)
    ]
