"""The first request for a row: what is most likely to decide it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.sampling.kernel import Ints
from slipstream.sampling.partial.decide import MOST_WANTED_IDS
from slipstream.sampling.partial.known import Wanted
from slipstream.sampling.partial.race import noisiest
from slipstream.sampling.row import Row

GREEDY_COUNT = 2
"""Likeliest tokens of a plain greedy row: the best one, and one more to see a tie."""
SAMPLED_COUNT = 20
"""Likeliest tokens of other rows: as many as vLLM allows where its settings say nothing."""
NOISY_COUNT = 32
"""Ids of the largest noise."""


def first_request(row: Row, vocabulary_size: int, top_count: int = 0, most_ids: int = MOST_WANTED_IDS) -> Wanted:
    """Return what to ask a server for before anything of a row is known. ``top_count`` likeliest
    tokens are to be reported. A server that cannot be asked for ids has 0 as ``most_ids``."""
    rule = row.rule
    allowed = _allowed(row)
    if allowed is not None and len(allowed) <= most_ids:
        return Wanted(max(1, top_count), tuple(allowed.tolist()))
    is_plain = rule.temperature == 0 and not row.is_processed
    count = max(GREEDY_COUNT if is_plain else SAMPLED_COUNT, top_count)
    if rule.temperature > 0 and rule.top_k:
        count = max(count, rule.top_k + 1)  # one more shows that none is tied with the last
    noisy = noisiest(vocabulary_size, rule, row.position, min(NOISY_COUNT, most_ids))
    raised = [token for token, bias in rule.logit_bias if bias > 0]
    return Wanted(min(count, vocabulary_size), _limited([*raised, *noisy.tolist()], most_ids))


def joined(wanted: Sequence[Wanted]) -> Wanted:
    """Return one request that serves several rows, for a server that takes one for all
    positions."""
    ids = {token for each in wanted for token in each.token_ids}
    return Wanted(max(each.likeliest_count for each in wanted), tuple(sorted(ids)))


def _allowed(row: Row) -> Ints | None:
    """Return the tokens that alone may be chosen, rising; None where the rule lists none."""
    listed = row.rule.listed.allowed
    if row.allowed is None:
        return np.unique(listed) if len(listed) else None
    tokens = np.flatnonzero(row.allowed)
    return np.intersect1d(tokens, listed) if len(listed) else tokens


def _limited(token_ids: Sequence[int], most: int) -> tuple[int, ...]:
    return tuple(sorted(dict.fromkeys(token_ids[:most])))
