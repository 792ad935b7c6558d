"""One tokenizer's spelling of text: the bytes of its tokens, and the tokens of a text with their
places."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer

from slipstream.hosting.tokenizer_files import TokenizerFiles
from slipstream.hosting.tokenizer_json import CONFIG_FILE, TOKENIZER_FILE
from slipstream.token_spelling import token_bytes


@dataclass(frozen=True, slots=True)
class Spelt:
    """The tokens of a text."""

    tokens: list[int]
    starts: list[int]
    """Index of each token's first character in the text."""
    ends: list[int]
    """Index after its last character. Tokens that share a character have the same places."""
    words: list[int | None]
    """The piece of the text that a token is a part of, as the tokenizer splits it first."""

    def index_at(self, place: int) -> int | None:
        """Return the index of the first token that begins at a place or after it; None if a token
        reaches over the place."""
        index = next((index for index, start in enumerate(self.starts) if start >= place), len(self.starts))
        return None if index and self.ends[index - 1] > place else index


class Spelling:
    """A tokenizer without the tokens that it puts around a text."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._tokenizer = Tokenizer.from_buffer(files.files[TOKENIZER_FILE])
        self._around = self._tokenizer.encode("a", add_special_tokens=True).ids
        self._tokenizer.post_processor = None  # it may move the places of tokens
        self.named: dict[str, str] = json.loads(files.files[CONFIG_FILE])
        """Special tokens by their names, such as ``bos_token``."""
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = {token: each.content for token, each in added.items() if each.special and each.content}
        """Texts of special tokens."""
        self.special_ids = {content: token for token, content in self.special.items()}
        """Special tokens by their texts."""
        self.size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        """One more than the largest id."""
        self._bytes: dict[int, bytes] = {}

    @cached_property
    def opening(self) -> str:
        """The special tokens that begin every text, as text."""
        found = []
        for token in self._around:
            if token not in self.special:
                break
            found.append(self.special[token])
        return "".join(found)

    @cached_property
    def _context(self) -> list[int]:
        """Tokens of a letter: after them a decoder strips nothing."""
        return self.encode("a").tokens

    def encode(self, text: str) -> Spelt:
        """Return the tokens of a text, in which special tokens may stand."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        places = encoding.offsets
        return Spelt(encoding.ids, [start for start, _ in places], [end for _, end in places], encoding.word_ids)

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text. An id without a token has none."""
        found = self._bytes.get(token)
        if found is None and 0 <= token < self.size:
            known = self._tokenizer.id_to_token(token) is not None
            found = self._bytes[token] = token_bytes(self._tokenizer, self._context, token) if known else b""
        return found or b""

    def text_bytes(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes of tokens in a text's middle."""
        return b"".join(map(self.bytes_of, tokens))


def stable_count(text: str, spelt: Spelt, begin: int, special: dict[int, str], word_count: int) -> int:
    """Return how many tokens stay as they are if the text goes on.

    They are those before the last ``word_count`` words, or up to the last special token. Where a
    text has no words, tokens that are far from the end count as stable. ``begin`` is the least
    answer.
    """
    tokens, left, end = spelt.tokens, word_count, len(text)
    for index in range(len(tokens) - 1, begin - 1, -1):
        if tokens[index] in special:
            return index + 1
        if index == begin:
            break
        if begins_word(text, spelt, index):
            left -= not text[spelt.starts[index] : end].isspace()
            end = spelt.starts[index]
            if left <= 0:
                return index
    return _far_from_end(spelt, begin)


_LONGEST_WORD, _FAR = 48, 24
"""Most tokens of a text without words that count as unstable, and tokens from the end of a longer
one on that do."""


def _far_from_end(spelt: Spelt, begin: int) -> int:
    if len(spelt.tokens) - begin <= _LONGEST_WORD:
        return begin
    last = len(spelt.tokens) - _FAR
    return next((index for index in range(last, begin, -1) if spelt.starts[index] >= spelt.ends[index - 1]), begin)


def begins_word(text: str, spelt: Spelt, index: int) -> bool:
    """Return whether a token that is not the first begins a word of the text."""
    start = spelt.starts[index]
    if start < spelt.ends[index - 1] or not 0 < start < len(text):
        return False
    return spelt.words[index] != spelt.words[index - 1] or (text[start].isspace() and not text[start - 1].isspace())
