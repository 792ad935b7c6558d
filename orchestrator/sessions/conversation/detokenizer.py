"""Tokens to text, piece by piece, cut at a stop string. The time is linear in the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from slipstream.token_spelling import byte_of

_MOST_OPEN = 32
"""Tokens that may come without text before they are taken for bytes that make no character: a
character has at most four bytes."""

_LONGEST = 8
"""Tokens at the end that may belong to an incomplete character."""

_BAD = "\ufffd"


class TokenStream:
    """Decodes tokens one by one without special tokens: the pieces joined are the decoding of the
    whole.

    If tokens are bytes, a byte that makes no character may change the decoding of those before it.
    Then returned text stays, and later tokens are decoded by themselves: no token is lost.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        """Decode as after the tokens of ``context``: many decoders strip a space at the start."""
        self._tokenizer = tokenizer
        self._stream = DecodeStream(list(context), skip_special_tokens=True)
        self._last: list[int] = list(context)
        """Tokens of the last piece."""
        self._open: list[int] = []
        """Tokens after the last piece."""
        self._bad_byte: int | None = None
        """A token of the current run of bytes, if the run makes no characters: then each byte is
        one bad character."""

    @property
    def open_count(self) -> int:
        """Number of tokens at the end whose text is not returned yet."""
        return len(self._open)

    def step(self, token: int) -> str:
        """Take a token; return the text that is certain now."""
        if self._bad_byte is not None:
            return self._step_in_bad_run(token, self._bad_byte)
        self._open.append(token)
        try:
            piece = self._stream.step(self._tokenizer, token) or ""
        except Exception:  # its only class of error: it would change text that it has returned
            self._stream = DecodeStream(list(self._open), skip_special_tokens=True)
            piece = self._decode(self._open)
        if piece:
            self._last, self._open = self._open, []
        elif len(self._open) >= _MOST_OPEN:
            piece = self._give_up()
        return piece

    def _give_up(self) -> str:
        """Return text that no later token can change."""
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
        """Start a new stream after ``context``, with ``tokens`` that make no text yet."""
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
        return byte_of(self._tokenizer, token)

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)


class StopMatcher:
    """Finds the first stop string in text that comes in pieces, and holds back what may be the
    start of one."""

    def __init__(self, stop_strings: Sequence[str], *, include: bool = False) -> None:
        """The text ends before the stop string, or with ``include`` after it."""
        self._stops = tuple(stop_strings)
        self._include = include
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> tuple[str, bool]:
        """Take a piece; return the text that is certain now, and whether a stop string ends it."""
        if not self._stops:
            return text, False
        self._held += text
        found = [(at, len(stop)) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, length = min(found)  # the first; of two with one start the shorter, which was complete first
            self.found = self._held[at : at + length]
            certain, self._held = self._held[: at + length if self._include else at], ""
            return certain, True
        keep = max(_longest_overlap(self._held, stop) for stop in self._stops)
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return certain, False

    def flush(self) -> str:
        """Return the text held back, at the end of all pieces."""
        held, self._held = self._held, ""
        return held


def _longest_overlap(text: str, stop: str) -> int:
    """Return the length of the longest proper prefix of ``stop`` that ends ``text``."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class SpecialStopMatcher:
    """Finds stop strings with special tokens, which readers do not see, and returns the text that
    they see."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._stops = tuple(stop_strings)
        self._held = ""
        self._seen: list[bool] = []
        """Flags of the characters held back: True if readers see it."""

    def push(self, text: str, special: str = "") -> tuple[str, str | None]:
        """Take a piece and the special token after it; return the text that is certain now, and the
        stop string that ends it, if one does."""
        self._held += text + special
        self._seen += [True] * len(text) + [False] * len(special)
        found = [(at, len(stop), stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, _, stop = min(found)
            return self._release(at), stop
        return self._release(len(self._held) - max(_longest_overlap(self._held, stop) for stop in self._stops)), None

    def flush(self) -> str:
        """Return the text held back, at the end of all pieces."""
        return self._release(len(self._held))

    def _release(self, count: int) -> str:
        text = "".join(character for character, seen in zip(self._held[:count], self._seen, strict=False) if seen)
        self._held, self._seen = self._held[count:], self._seen[count:]
        return text


class Decoder(Protocol):
    """The part of a `Codec` that a `Detokenizer` needs."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer."""

    @property
    def special_texts(self) -> Mapping[int, str]:
        """Special tokens by id, as they stand in rendered text."""

    @property
    def context(self) -> Sequence[int]:
        """Tokens after which a decoder strips nothing."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return tokens as text without special tokens."""


class Detokenizer:
    """Decodes the tokens of one turn: the pieces joined are the decoding of the whole, cut at a
    stop string."""

    def __init__(
        self, codec: Decoder, stop_strings: Sequence[str], *, include_stop: bool = False, exact: bool = False
    ) -> None:
        """``exact`` keeps a space at the start, which many decoders strip: a structure determines
        whether there is one."""
        self._codec = codec
        self._context = codec.context if exact else []
        self._stream = TokenStream(codec.tokenizer, self._context)
        self._tokens: list[int] = []
        self._decoded: list[str] = []
        """Pieces of text so far."""
        special = [stop for stop in stop_strings if any(text in stop for text in codec.special_texts.values())]
        self._special_stops = SpecialStopMatcher(special) if special else None
        self._stops = StopMatcher([stop for stop in stop_strings if stop not in special], include=include_stop)
        self._include_stop = include_stop
        self.stop_string: str | None = None
        """The stop string that ended the text, if one did."""

    def push(self, token: int) -> tuple[str, bool]:
        """Take a token; return the text that is certain now, and whether a stop string ends it."""
        self._tokens.append(token)
        piece = self._stream.step(token)
        if piece:
            self._decoded.append(piece)
        return self._match(piece, token)

    def _match(self, piece: str, token: int | None) -> tuple[str, bool]:
        if self._special_stops is None:
            return self._stopped(piece)
        special = "" if token is None else self._codec.special_texts.get(token, "")
        certain, stop = self._special_stops.push(piece, special)
        text, stopped = self._stopped(certain)
        if stop is None or stopped:
            return text, stopped
        self.stop_string = stop
        return text + self._stops.flush() + (stop if self._include_stop else ""), True

    def _stopped(self, text: str) -> tuple[str, bool]:
        certain, stopped = self._stops.push(text)
        if stopped:
            self.stop_string = self._stops.found
        return certain, stopped

    def flush(self) -> str:
        """Return the rest at the end of all tokens, incomplete characters included."""
        whole = self._codec.decode([*self._context, *self._tokens])[len(self._codec.decode(self._context)) :]
        said, left = "".join(self._decoded), self._stream.open_count
        rest = (
            whole[len(said) :] if whole.startswith(said) else self._codec.decode(self._tokens[-left:] if left else [])
        )
        certain, stopped = self._match(rest, None)
        if stopped:
            return certain
        if self._special_stops is not None:
            more, stopped = self._stops.push(self._special_stops.flush())
            certain += more
        return certain if stopped else certain + self._stops.flush()
