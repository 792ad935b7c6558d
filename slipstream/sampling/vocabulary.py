"""A tokenizer's tokens as bytes, and which of them may stand in a structure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from slipstream.sampling.structure_errors import StructureUnsupportedError

Mask = NDArray[np.bool_]

_MARK = re.compile(r"[!-~]+")
"""Texts that are their own bytes in every tokenizer."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``text[token]``: the token stands for bytes of text and ends nothing. ``end`` has the end
    tokens alone."""

    tokenizer: LLTokenizer
    text: Mask
    end: Mask

    @property
    def size(self) -> int:
        """The width of a mask."""
        return len(self.text)

    def is_text(self, token: int) -> bool:
        """Return True if a token stands for bytes of text."""
        return 0 <= token < len(self.text) and bool(self.text[token])

    def is_end(self, token: int) -> bool:
        """Return True if a token ends a text."""
        return 0 <= token < len(self.end) and bool(self.end[token])


class _Tokens(TokenizerWrapper):
    """A vocabulary as the library takes it: ``tokens[id]`` are a token's bytes, empty where it is
    not text."""

    def __init__(self, tokens: Sequence[bytes], end_token: int) -> None:
        self.tokens = tokens
        self.special_token_ids: Sequence[int] = ()
        self.eos_token_id = end_token
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True

    def __call__(self, text: Any) -> list[int]:
        raise NotImplementedError("nothing is tokenized: no bytes are forced")


def vocabulary_of(tokenizer_json: str | bytes, size: int, end_token_ids: Sequence[int]) -> Vocabulary:
    """``size`` is the width of the model's logits. StructureUnsupportedError if tokens are no bytes
    or none ends a text."""
    end_token_ids = [token for token in end_token_ids if 0 <= token < size]
    if not end_token_ids:
        raise StructureUnsupportedError("structures need a model with an end token, but it names none")
    text = tokenizer_json.decode() if isinstance(tokenizer_json, bytes) else tokenizer_json
    try:
        known = LLTokenizer(text.strip())  # what does not begin with a brace would be a path
    except ValueError as error:
        raise StructureUnsupportedError(f"structures need a tokenizer of bytes: {error}") from error
    tokens, shown = [b""] * size, _shown_marks(text)
    for token in range(min(size, known.vocab_size)):
        if token not in end_token_ids and (token in shown or not known.is_special_token(token)):
            tokens[token] = known.decode_bytes([token])
    end = np.zeros(size, np.bool_)
    end[list(end_token_ids)] = True
    is_text = np.array([bool(token) for token in tokens], np.bool_)
    return Vocabulary(LLTokenizer(_Tokens(tokens, end_token_ids[0])), is_text, end)


def _shown_marks(tokenizer_json: str) -> set[int]:
    """Return the added tokens that answers show as text, such as ``<tool_call>`` and ``<think>``.
    The library takes all added tokens in angle brackets for special ones."""
    added = json.loads(tokenizer_json).get("added_tokens") or ()
    return {token["id"] for token in added if not token.get("special", True) and _MARK.fullmatch(token["content"])}
