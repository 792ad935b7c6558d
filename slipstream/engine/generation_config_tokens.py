"""The token lists of a generation_config.json: ends of a text and banned or biased tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from slipstream.engine.checkpoint import some
from slipstream.sampling.rule import MAX_LISTED_TOKENS, MAX_LOGIT_BIAS

T = TypeVar("T")


class Tokens:
    """The keys of a generation_config.json that name tokens. Ids outside the vocabulary are left
    out with a warning."""

    def __init__(self, values: Mapping[str, Any], vocabulary_size: int, ends: Any, warnings: list[str]) -> None:
        """``ends``: one id, several or none."""
        self._vocabulary_size, self._warnings = vocabulary_size, warnings
        self.ends = self._ids("eos_token_id", ends)
        if not self.ends and ends not in (None, []):
            warnings.append(
                "no end token is left: a text ends by its length, by a request's stop strings, or not at all"
            )
        suppressed = self._ids("suppress_tokens", values.get("suppress_tokens"))
        words = self._single_words(values.get("bad_words_ids"))
        self.biases, excluded = self._single_biases(values.get("sequence_bias"))
        banned = self._fitting("suppress_tokens and bad_words_ids", (*suppressed, *words, *excluded))
        if len({*banned, *self.ends}) >= vocabulary_size:
            warnings.append("not followed: suppress_tokens and bad_words_ids, which leave no token")
            banned = ()
        self.banned = banned
        self.begins_without_end = self._begins_without_end(values.get("begin_suppress_tokens"))

    def _ids(self, key: str, said: Any) -> tuple[int, ...]:
        ids: list[int] = []
        strange: list[str] = []
        for each in said if isinstance(said, list | tuple) else () if said is None else (said,):
            token = int(each) if isinstance(each, float) and each.is_integer() else each
            if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < self._vocabulary_size:
                ids.append(token)
            elif each is not None:
                strange.append(str(each))
        if strange:
            self._warnings.append(
                f"{key} has {some(strange)}, no token from 0 to {self._vocabulary_size - 1}, which is left out"
            )
        return tuple(dict.fromkeys(ids))

    def _single_words(self, said: Any) -> tuple[int, ...]:
        """Return the words of one token each. End tokens stay allowed, as in transformers."""
        words = [each if isinstance(each, list) else [each] for each in said] if isinstance(said, list) else []
        if said is not None and not isinstance(said, list):
            self._warnings.append("bad_words_ids must be a list of lists, and is left out")
        several = sum(len(word) != 1 for word in words)
        if several:
            self._warnings.append(f"not followed: {several} of bad_words_ids that have several tokens")
        ids = self._ids("bad_words_ids", [word[0] for word in words if len(word) == 1])
        return tuple(token for token in ids if token not in self.ends)

    def _single_biases(self, said: Any) -> tuple[tuple[tuple[int, float], ...], tuple[int, ...]]:
        """Return the biases of one token each, and the tokens whose bias is minus infinity."""
        biases: dict[int, float] = {}
        excluded: list[int] = []
        unfollowed = 0
        for entry in said if isinstance(said, list) else () if said is None else (said,):
            tokens, bias = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
            if not isinstance(tokens, list) or len(tokens) != 1 or not isinstance(bias, int | float):
                unfollowed += 1
            elif ids := self._ids("sequence_bias", tokens):
                if bias == -math.inf:
                    excluded.append(ids[0])
                elif -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
                    biases[ids[0]] = float(bias)
                else:
                    unfollowed += 1
        if unfollowed:
            self._warnings.append(
                f"not followed: {unfollowed} of sequence_bias that have several tokens or a bias past {MAX_LOGIT_BIAS:g}"
            )
        return self._fitting("sequence_bias", tuple(sorted(biases.items()))), tuple(excluded)

    def _begins_without_end(self, said: Any) -> bool:
        """Return True if a text must not be empty. A minimum of one token can express no other rule
        about first tokens."""
        ids = self._ids("begin_suppress_tokens", said)
        if not ids or (self.ends and set(ids) == set(self.ends)):
            return bool(ids)
        self._warnings.append(f"not followed: begin_suppress_tokens={list(ids)}")
        return False

    def _fitting(self, what: str, listed: tuple[T, ...]) -> tuple[T, ...]:
        """Return each value once, or nothing if a rule may not list so many."""
        once = tuple(dict.fromkeys(listed))
        if len(once) <= MAX_LISTED_TOKENS:
            return once
        self._warnings.append(f"not followed: {what}, which name {len(once)} tokens, more than {MAX_LISTED_TOKENS}")
        return ()
