"""Tokens to text as they come, in time that grows with their number alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_MOST_OPEN = 32
"""Tokens that may come without text before they are taken for what makes no character: one has four
bytes at most."""

_LONGEST = 8
"""Tokens at the end that may belong to a character which is not whole yet."""

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BAD = "\ufffd"


class TokenStream:
    """Decodes tokens one by one, special ones left out: the pieces joined are the decoding of the
    whole.

    Where tokens are bytes, one that makes no character may take back what those before it were
    decoded to. What was said stays then, and what came since is decoded by itself: nothing is lost.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        """Decode as after the tokens of ``context``: many decoders strip a space at the
        beginning."""
        self._tokenizer = tokenizer
        self._stream = DecodeStream(list(context), skip_special_tokens=True)
        self._last: list[int] = list(context)
        """The tokens of the last piece."""
        self._open: list[int] = []
        """Those that have come since."""
        self._bad_byte: int | None = None
        """A token of the run of bytes that goes on, if it makes no characters: each byte is one bad
        character then."""

    @property
    def open_count(self) -> int:
        """Tokens at the end whose text is not said yet."""
        return len(self._open)

    def step(self, token: int) -> str:
        """Take a token; returns the text that is certain now."""
        if self._bad_byte is not None:
            return self._step_in_bad_run(token, self._bad_byte)
        self._open.append(token)
        try:
            piece = self._stream.step(self._tokenizer, token) or ""
        except Exception:  # its only class of error: what it had decoded is taken back
            self._stream = DecodeStream(list(self._open), skip_special_tokens=True)
            piece = self._decode(self._open)
        if piece:
            self._last, self._open = self._open, []
        elif len(self._open) >= _MOST_OPEN:
            piece = self._give_up()
        return piece

    def _give_up(self) -> str:
        """Say what no token can change any more."""
        text, tokens = self._decode(self._open), self._open
        if not text:
            self._begin(self._last, [])
            return ""
        run = [token for token in tokens if self._decode([token])]
        high = next((token for token in run if (self._byte_of(token) or 0) >= 0x80), None)
        if high is not None and all(self._byte_of(token) is not None for token in run):
            self._bad_byte, self._open = high, []
            return text
        for count in range(len(tokens) - 1, max(0, len(tokens) - _LONGEST), -1):
            said = self._decode(tokens[:count])
            if said and said + self._decode(tokens[count:]) == text:
                self._begin([], tokens[count:])
                return said
        self._begin([], [])
        return text

    def _begin(self, context: list[int], tokens: list[int]) -> None:
        """Go on with a new stream, after ``context``, with ``tokens`` that make no text yet."""
        if self._decode(context).endswith(_BAD):
            context = []
        self._last, self._open = context, tokens
        self._stream = DecodeStream(list(context), skip_special_tokens=True)
        for token in tokens:
            self._stream.step(self._tokenizer, token)

    def _step_in_bad_run(self, token: int, bad_byte: int) -> str:
        if self._byte_of(token) is not None:
            return _BAD
        piece = self._decode([bad_byte, token]).removeprefix(_BAD)
        if piece:
            self._bad_byte = None
            self._begin([bad_byte, token], [])
        return piece

    def _byte_of(self, token: int) -> int | None:
        spelt = _BYTE.fullmatch(self._tokenizer.id_to_token(token) or "")
        return None if spelt is None else int(spelt[1], 16)

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)
