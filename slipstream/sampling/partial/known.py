"""A row as a server answers it, the log-probabilities of some tokens, and a request for one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from slipstream.sampling.kernel import Floats32, Ints

Pair = tuple[int, float]
"""A token id and its log-probability."""

MOST_ABOVE_ZERO = 1e-3
"""A log-probability may be so much above 0 by rounding. More is not a log-probability."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request for a row's log-probabilities: of its ``likeliest_count`` likeliest tokens, and of
    the ``token_ids``, rising, where the server can be asked for ids."""

    likeliest_count: int
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PartialRow:
    """The log-probabilities of some tokens of a row, as one answer of a server has them.

    ``token_ids`` int64 ``[known]``, each once, rising. ``logprobs`` float32 ``[known]``: natural,
    normalised over the ``vocabulary_size``, before any sampling rule; -inf where a token cannot
    come. No token that is not listed has more than ``bound``. ``likeliest_count`` is the number of
    likeliest tokens that the server listed. The tokens of ``capped_ids`` int64 ``[capped]``, which
    are not listed, have at most their ``caps`` float32 ``[capped]``.
    """

    vocabulary_size: int
    token_ids: Ints
    logprobs: Floats32
    bound: np.float32
    likeliest_count: int
    capped_ids: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    caps: Floats32 = field(default_factory=lambda: np.empty(0, dtype=np.float32))

    @classmethod
    def of(cls, vocabulary_size: int, likeliest: Iterable[Pair], others: Iterable[Pair] = ()) -> PartialRow:
        """Return a row of the ``likeliest`` tokens and of ``others`` that were asked for by id.

        Only the ``likeliest`` bound the tokens that are not listed: a server that adds the
        sampled token to its list adds one of the ``others``. Raises ValueError for an answer that
        is not one.
        """
        top = dict(likeliest)
        known = {**dict(others), **top}
        tokens = np.array(sorted(known), dtype=np.int64)
        logprobs = np.array([known[token] for token in tokens.tolist()], dtype=np.float32)
        if len(tokens) and not (tokens[0] >= 0 and tokens[-1] < vocabulary_size):
            raise ValueError(f"token ids must be from 0 to {vocabulary_size - 1}, but {tokens[0]} to {tokens[-1]} came")
        if not (logprobs <= MOST_ABOVE_ZERO).all():  # NaN neither
            raise ValueError("log-probabilities must be numbers of at most 0")
        bound = np.float32(min(top.values(), default=0.0))
        return cls(vocabulary_size, tokens, logprobs, bound, len(top))

    def capped(self, token_ids: Iterable[int], cap: float) -> PartialRow:
        """Return this row with the knowledge that none of ``token_ids`` has more than ``cap``."""
        return self._capped_by(dict.fromkeys(token_ids, cap))

    def joined(self, other: PartialRow) -> PartialRow:
        """Return what two answers tell together. Numbers that this one lists stay, and its
        ``bound``."""
        listed = {**dict(other._pairs()), **dict(self._pairs())}
        tokens = np.array(sorted(listed), dtype=np.int64)
        logprobs = np.array([listed[token] for token in tokens.tolist()], dtype=np.float32)
        return replace(self, token_ids=tokens, logprobs=logprobs)._capped_by(other._caps())

    @property
    def is_complete(self) -> bool:
        """True if every token's log-probability is known."""
        return len(self.token_ids) == self.vocabulary_size

    def most(self) -> Floats32:
        """Return the most that each token may have, float32 ``[vocabulary]``."""
        row = self._filled(self.bound)
        row[self.capped_ids] = np.minimum(self.caps, self.bound)
        return row

    def least(self) -> Floats32:
        """Return the least that each token may have, float32 ``[vocabulary]``."""
        return self._filled(np.float32(-np.inf))

    def knows(self, token: int) -> bool:
        """Return whether a token is listed."""
        at = int(np.searchsorted(self.token_ids, token))
        return at < len(self.token_ids) and int(self.token_ids[at]) == token

    def logprob(self, token: int) -> float:
        """Return the log-probability of a listed token."""
        return float(self.logprobs[int(np.searchsorted(self.token_ids, token))])

    def _filled(self, others: np.float32) -> Floats32:
        row: Floats32 = np.full(self.vocabulary_size, others, dtype=np.float32)
        row[self.token_ids] = self.logprobs
        return row

    def _pairs(self) -> Iterable[Pair]:
        return zip(self.token_ids.tolist(), self.logprobs.tolist(), strict=True)

    def _caps(self) -> dict[int, float]:
        return dict(zip(self.capped_ids.tolist(), self.caps.tolist(), strict=True))

    def _capped_by(self, more: dict[int, float]) -> PartialRow:
        caps = self._caps()
        for token, cap in more.items():
            caps[token] = min(cap, caps.get(token, cap))
        caps = {token: cap for token, cap in caps.items() if not self.knows(token)}
        return replace(
            self,
            capped_ids=np.array([*caps], dtype=np.int64),
            caps=np.array([*caps.values()], dtype=np.float32),
        )


def rounding(logprob: float, temperature: float) -> float:
    """Return the least margin by which a choice is certain to be the one of the raw logits too.

    A score is ``logit / temperature - log(arrival)``. A server computes float32 logits, subtracts
    their log-sum-exp, and we divide by the temperature: three roundings, each of at most 2^-24 of
    a number (IEEE 754, to nearest). The log-sum-exp is common to all tokens and moves none.
    For two tokens, logits of up to `MOST_LOGIT` and a log-probability of ``logprob`` the margin
    may change by ``2 * 2^-24 * (2 * |logprob| + 2 * MOST_LOGIT) / temperature``. Greedy choices
    count as those of temperature 1.
    """
    magnitude = min(abs(logprob), MOST_LOGIT) if math.isfinite(logprob) else MOST_LOGIT
    return 2.0**-22 * (magnitude + MOST_LOGIT) / (temperature or 1.0)


MOST_LOGIT = 128.0
"""Largest absolute logit that `rounding` allows for."""
