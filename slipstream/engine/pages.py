"""Page accounting: integers only, no tensors. A page is free, held (referenced) or cached (kept for
prefix reuse)."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from slipstream.engine.errors import OutOfPagesError, UnsupportedModelError

PADDING_PAGE = 0
"""Page 0 is never allocated. Padding rows write to it, and padded page tables point to it."""

_STRIDE = 32
"""Pages between the starts of two new sequences."""

_START_TRIALS = 8


MIB = 2**20


def pages_in(memory_mib: float, page_bytes: int) -> int:
    """Return how many pages fit into the memory. UnsupportedModelError if none does."""
    count = math.floor(memory_mib * MIB / page_bytes)
    if count < 1:
        raise UnsupportedModelError(
            f"kv_memory_mib of {memory_mib:g} holds no page; one takes {page_bytes / MIB:.2g} MiB"
        )
    return count


@dataclass(frozen=True, slots=True)
class PageCounts:
    """A conserved sum: ``total == free + held + cached``."""

    total: int
    free: int
    held: int
    cached: int


class PagePool:
    """Pages 1 to ``page_count`` with reference counts and an index of published pages.

    A published page's content is final and can be found by its key. Once it has no reference it
    stays cached, and the least recently used one goes first when room is needed.
    """

    def __init__(self, page_count: int) -> None:
        self.page_count = page_count
        self._free_count = page_count
        self._freed: dict[int, None] = {}
        """Free pages that were in use before. The last one is taken first."""
        self._fresh = 1
        """Every free page before this one is in ``_freed``. So a pool of millions of pages takes no
        time or memory to create."""
        self._next_start = 1
        self._references = [0] * (page_count + 1)
        self._page_by_key: dict[bytes, int] = {}
        self._key_by_page: dict[int, bytes] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    def allocate(self, after: int | None = None) -> int:
        """Allocate a page to write into, with one reference, if possible the one after page
        ``after``. OutOfPagesError if none is free or cached.

        Attention reads consecutive pages in place and has to gather others first. So sequences
        start far apart.
        """
        if self._free_count:
            page = self._start() if after is None else after + 1
            if not self._is_free(page):
                page = self._any_free()
            self._freed.pop(page, None)
            self._free_count -= 1
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            self._unpublish(page)
        else:
            raise OutOfPagesError(f"all {self.page_count} KV pages are held", page_count=self.page_count)
        self._references[page] = 1
        return page

    def acquire(self, page: int) -> None:
        """Add a reference to a held or cached page."""
        self._cached.pop(page, None)
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Drop a reference. After the last one the page is cached if it is published, and free
        otherwise."""
        self._references[page] -= 1
        assert self._references[page] >= 0, f"page {page} released more often than acquired"
        if self._references[page] == 0:
            if page in self._key_by_page:
                self._cached[page] = None
            else:
                self._freed[page] = None
                self._free_count += 1

    def publish(self, page: int, key: bytes) -> None:
        """Make a full page findable by its key. The first page that was published under a key stays
        the one found."""
        if key not in self._page_by_key and page not in self._key_by_page:
            self._page_by_key[key] = page
            self._key_by_page[page] = key

    def find(self, key: bytes) -> int | None:
        """Return the page that is published under a key, without adding a reference."""
        return self._page_by_key.get(key)

    def writable(self, page: int) -> bool:
        """True if the holder may overwrite the page: it has the only reference, and the content is
        not published."""
        return self._references[page] == 1 and page not in self._key_by_page

    def counts(self) -> PageCounts:
        """Return how many pages are in each state."""
        free, cached = self._free_count, len(self._cached)
        return PageCounts(self.page_count, free, self.page_count - free - cached, cached)

    def check(self) -> None:
        """Raise AssertionError if a page is lost, counted twice or in an impossible state. Walks
        all pages, so it is not for hot paths."""
        held = {page for page, count in enumerate(self._references) if count}
        freed, cached = set(self._freed), set(self._cached)
        free = freed | {page for page in range(self._fresh, self.page_count + 1) if self._is_free(page)}
        assert not (held & free or held & cached or free & cached), "a page is in two states"
        assert held | free | cached == set(range(1, self.page_count + 1)), "a page is lost"
        assert len(free) == self._free_count, "free pages are counted wrong"
        assert cached <= set(self._key_by_page), "a cached page cannot be found"
        assert not free & set(self._key_by_page), "a free page can be found"

    def _start(self) -> int:
        """Return a page from which a new sequence can grow for a while without meeting another
        one."""
        for _ in range(_START_TRIALS):
            start = self._next_start
            self._next_start = start + _STRIDE if start + _STRIDE <= self.page_count else 1
            if self._is_free(start) and (start == self.page_count or self._is_free(start + 1)):
                break
        return start

    def _is_free(self, page: int) -> bool:
        return page <= self.page_count and not self._references[page] and page not in self._cached

    def _any_free(self) -> int:
        """Return any free page."""
        if self._freed:
            return next(reversed(self._freed))
        while not self._is_free(self._fresh):
            self._fresh += 1
        return self._fresh

    def _unpublish(self, page: int) -> None:
        del self._page_by_key[self._key_by_page.pop(page)]
