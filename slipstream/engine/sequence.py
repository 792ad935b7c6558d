"""Sequences: the tokens whose KV is cached, and the pages that hold it. Integers only."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass, field

from slipstream.engine.errors import SequenceTooShortError
from slipstream.engine.pages import PagePool

_ROOT_KEY = b"slipstream"


@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """One session's cache on this service: position i's KV is in ``pages[i // page_size]``."""

    handle: str
    tokens: array[int] = field(default_factory=lambda: array("q"))
    """Tokens as int64. Penalties read the whole context for every row, and an array avoids one
    object a number."""
    pages: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    """Chain keys of the first full pages of committed tokens."""
    forked_from: Sequence | None = None
    is_private: bool = False
    """True if no observer may see its rows. It stays so, because its tokens stay."""

    @property
    def is_fork(self) -> bool:
        """True if it was forked from another sequence. A fork lives as long as one part of a
        job."""
        return self.forked_from is not None

    @property
    def root(self) -> Sequence:
        """The sequence that this one was forked from, or itself if it is no fork."""
        return self if self.forked_from is None else self.forked_from.root

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class PageCopy:
    """A copy that the accounting asks for: page ``source`` to page ``destination``, before the next
    forward."""

    source: int
    destination: int


class SequenceCache:
    """Extends, cuts, forks and shares sequences over one page pool.

    Only committed tokens are ever shared: `publish` gets their number.
    """

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.pool = pool
        self.page_size = page_size
        self._copies: list[PageCopy] = []

    def pages_for(self, length: int) -> int:
        """Return the number of pages that ``length`` tokens need."""
        return -(-length // self.page_size)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Drop everything past ``length``. SequenceTooShortError if the sequence is shorter; then
        nothing changes."""
        if length == len(sequence):
            return
        if length > len(sequence):
            raise SequenceTooShortError(
                f"base_length is {length}, but {len(sequence)} tokens are cached; send the tokens from there on",
                cached_length=len(sequence),
            )
        del sequence.tokens[length:]
        del sequence.keys[length // self.page_size :]
        for page in reversed(sequence.pages[self.pages_for(length) :]):  # so that they are allocated again in order
            self.pool.release(page)
        del sequence.pages[self.pages_for(length) :]

    def rewind(self, sequence: Sequence, base_length: int, tokens: TokenSequence[int]) -> int:
        """Keep ``base_length`` tokens and those after them that equal the coming ``tokens``, and
        drop the rest.

        Returns how many of ``tokens`` are already there. SequenceTooShortError as in `truncate`.
        """
        kept = 0
        for old, new in zip(sequence.tokens[base_length : base_length + len(tokens)], tokens, strict=False):
            if old != new:
                break
            kept += 1
        self.truncate(sequence, base_length + kept)
        return kept

    def adopt_prefix(self, sequence: Sequence, tokens: TokenSequence[int]) -> int:
        """Extend a committed sequence that ends on a page border by published pages that hold the
        coming tokens.

        Returns how many tokens that gave: whole pages, and never the last token, because its logits
        are wanted.
        """
        adopted = 0
        if len(sequence) % self.page_size or len(tokens) <= self.page_size:
            return adopted
        self.publish(sequence, len(sequence))
        while len(sequence) % self.page_size == 0 and adopted + self.page_size < len(tokens):
            content = tokens[adopted : adopted + self.page_size]
            key = _chain_key(sequence.keys[-1] if sequence.keys else _ROOT_KEY, content)
            page = self.pool.find(key)
            if page is None:
                break
            self.pool.acquire(page)
            sequence.pages.append(page)
            sequence.keys.append(key)
            sequence.tokens.extend(content)
            adopted += self.page_size
        return adopted

    def extend(self, sequence: Sequence, tokens: TokenSequence[int]) -> None:
        """Append tokens, and give their positions writable pages.

        OutOfPagesError if there are not enough; then nothing changes.
        """
        length, pages = len(sequence.tokens), sequence.pages
        last = pages[-1] if pages else None
        is_copied = last is not None and length % self.page_size != 0 and not self.pool.writable(last)
        count = self.pages_for(length + len(tokens)) - len(pages) + is_copied
        if count:
            fresh = self._allocate(count, last)
            if last is not None and is_copied:
                self._copies.append(PageCopy(last, fresh[0]))
                pages[-1] = fresh.pop(0)
                self.pool.release(last)
            pages.extend(fresh)
        sequence.tokens.extend(tokens)

    def publish(self, sequence: Sequence, committed_length: int) -> None:
        """Let other sequences find the full pages below ``committed_length``. Their KV must be
        written."""
        for index in range(len(sequence.keys), committed_length // self.page_size):
            content = sequence.tokens[index * self.page_size : (index + 1) * self.page_size]
            sequence.keys.append(_chain_key(sequence.keys[-1] if sequence.keys else _ROOT_KEY, content))
            self.pool.publish(sequence.pages[index], sequence.keys[index])

    def fork(self, sequence: Sequence, handle: str) -> Sequence:
        """Return a second sequence over the same pages, copy-on-write: the first of the two to
        write gets a copy of the last page."""
        for page in sequence.pages:
            self.pool.acquire(page)
        return Sequence(handle, sequence.tokens[:], list(sequence.pages), list(sequence.keys), forked_from=sequence)

    def release(self, sequence: Sequence) -> None:
        """Release all pages and forget the tokens."""
        self.truncate(sequence, 0)

    def take_copies(self) -> list[PageCopy]:
        """Page copies asked for since the last call, in order."""
        copies, self._copies = self._copies, []
        return copies

    def _allocate(self, count: int, after: int | None) -> list[int]:
        pages: list[int] = []
        try:
            for _ in range(count):
                pages.append(self.pool.allocate(after))
                after = pages[-1]
        except Exception:
            for page in pages:
                self.pool.release(page)
            raise
        return pages


def _chain_key(parent: bytes, tokens: TokenSequence[int]) -> bytes:
    """Names a page by its content and everything before it; 128 bits, so that equal keys mean equal
    prefixes."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()
