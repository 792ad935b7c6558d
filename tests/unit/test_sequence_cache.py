"""The page accounting against brute force: every sequence's content is what plain lists say, and no
page is lost."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipstream.engine.errors import OutOfPagesError, SequenceTooShortError
from slipstream.engine.pages import _START_TRIALS, _STRIDE, PADDING_PAGE, PageCounts, PagePool
from slipstream.engine.sequence import Sequence, SequenceCache

PAGE_SIZE = 4
PAGE_COUNT = 12


class Memory:
    """What a model would do with the accounting: write to slots, copy pages. As with keys and
    values, what is written depends on the token and on all that can be read before it."""

    def __init__(self, cache: SequenceCache) -> None:
        self.cache = cache
        self.slots = {page: [-1] * PAGE_SIZE for page in range(PAGE_COUNT + 1)}

    @staticmethod
    def values(tokens: list[int], before: int = 0) -> list[int]:
        """What tokens come to after the value ``before``."""
        return list(itertools.accumulate(tokens, lambda value, token: hash((value, token)), initial=before))[1:]

    def extend(self, sequence: Sequence, tokens: list[int]) -> None:
        start = len(sequence)
        self.cache.extend(sequence, tokens)
        for copy in self.cache.take_copies():
            self.slots[copy.destination] = list(self.slots[copy.source])
        before = self.read(sequence)[start - 1] if start else 0
        for position, value in enumerate(self.values(tokens, before), start):
            self.slots[sequence.pages[position // PAGE_SIZE]][position % PAGE_SIZE] = value

    def read(self, sequence: Sequence) -> list[int]:
        return [self.slots[sequence.pages[p // PAGE_SIZE]][p % PAGE_SIZE] for p in range(len(sequence))]


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = SequenceCache(PagePool(PAGE_COUNT), PAGE_SIZE)
        self.memory = Memory(self.cache)
        self.expected: dict[str, list[int]] = {}
        self.sequences: dict[str, Sequence] = {}
        self.counter = 0

    def _new(self, sequence: Sequence, content: list[int]) -> None:
        self.sequences[sequence.handle] = sequence
        self.expected[sequence.handle] = content

    def _name(self) -> str:
        self.counter += 1
        return f"s{self.counter}"

    @rule()
    def open(self) -> None:
        self._new(Sequence(self._name()), [])

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 2), min_size=1, max_size=9), committed=st.booleans())
    def append(self, data: st.DataObject, tokens: list[int], committed: bool) -> None:
        handle = data.draw(st.sampled_from(sorted(self.sequences)))
        sequence = self.sequences[handle]
        before = len(sequence)
        adopted = self.cache.adopt_prefix(sequence, tokens) if committed else 0
        assert adopted % PAGE_SIZE == 0
        assert adopted < len(tokens)
        self.expected[handle] += tokens[:adopted]
        try:
            self.memory.extend(sequence, tokens[adopted:])
        except OutOfPagesError:
            assert len(sequence) == before + adopted
            return
        self.expected[handle] += tokens[adopted:]
        if committed:
            self.cache.publish(sequence, len(sequence))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.sequences)))
        length = data.draw(st.integers(0, len(self.expected[handle])))
        self.cache.truncate(self.sequences[handle], length)
        del self.expected[handle][length:]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 2), max_size=9))
    def rewind(self, data: st.DataObject, tokens: list[int]) -> None:
        handle = data.draw(st.sampled_from(sorted(self.sequences)))
        base = data.draw(st.integers(0, len(self.expected[handle])))
        cached = self.expected[handle][base:]
        equal = 0
        while equal < min(len(cached), len(tokens)) and cached[equal] == tokens[equal]:
            equal += 1
        assert self.cache.rewind(self.sequences[handle], base, tokens) == equal
        del self.expected[handle][base + equal :]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.sequences)))
        self._new(self.cache.fork(self.sequences[handle], self._name()), list(self.expected[handle]))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.sequences)))
        self.cache.release(self.sequences.pop(handle))
        del self.expected[handle]

    @invariant()
    def content_is_what_was_appended(self) -> None:
        for handle, sequence in self.sequences.items():
            assert list(sequence.tokens) == self.expected[handle]
            assert self.memory.read(sequence) == Memory.values(self.expected[handle])
            assert len(sequence.pages) == self.cache.pages_for(len(sequence))

    @invariant()
    def no_page_is_lost(self) -> None:
        self.cache.pool.check()
        held = {page for sequence in self.sequences.values() for page in sequence.pages}
        assert self.cache.pool.counts().held == len(held)


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase


def cache_with(tokens: list[int], *, published: bool = True) -> tuple[SequenceCache, Sequence]:
    cache = SequenceCache(PagePool(PAGE_COUNT), PAGE_SIZE)
    sequence = Sequence("a")
    cache.extend(sequence, tokens)
    if published:
        cache.publish(sequence, len(tokens))
    return cache, sequence


def test_a_second_session_shares_whole_committed_pages_and_never_its_last_token() -> None:
    cache, first = cache_with(list(range(8)))
    second = Sequence("b")
    assert cache.adopt_prefix(second, list(range(8))) == 4
    assert second.pages == first.pages[:1]
    third = Sequence("c")
    assert cache.adopt_prefix(third, [*range(8), 99]) == 8


def test_a_page_is_found_after_the_same_tokens_only_and_never_by_its_content_alone() -> None:
    """Its keys and values depend on everything before it."""
    same = list(range(4, 8))
    cache, first = cache_with([*range(4), *same])
    other = Sequence("b")
    cache.extend(other, [50, 51, 52, 53])
    cache.publish(other, 4)
    for tokens, adopted in (
        ([*range(4), *same, 9], 8),
        ([50, 51, 52, 53, *same, 9], 4),  # another first page
        ([*same, 9], 0),  # at another place
        ([*same, *range(4), 9], 0),  # the other way round
        ([*range(4), *range(4), *same, 9], 4),  # a page more before it
        ([0, 1, 2, 4, *same, 9], 0),  # the last token before it
    ):
        assert cache.adopt_prefix(Sequence("c"), tokens) == adopted, tokens
    # And so where a sequence already has the page before.
    cache.publish(other, 4)
    assert cache.adopt_prefix(other, [*same, 9]) == 0
    assert cache.adopt_prefix(Sequence("d", first.tokens[:4], first.pages[:1]), [*same, 9]) == 4


def test_a_sequence_that_was_cut_forgets_what_its_pages_were_called() -> None:
    """Else a page would be adopted that came after the tokens cut off."""
    cache, first = cache_with(list(range(8)))
    longer = Sequence("b")
    cache.extend(longer, list(range(12)))
    cache.publish(longer, 12)
    cache.truncate(first, 4)
    assert cache.adopt_prefix(cache.fork(first, "f"), [8, 9, 10, 11, 99]) == 0
    assert cache.adopt_prefix(first, [8, 9, 10, 11, 99]) == 0
    assert cache.adopt_prefix(first, [4, 5, 6, 7, 8, 9, 10, 11, 99]) == 8
    # Cut within a page: what is written there now has another name.
    cache.truncate(first, 6)
    cache.extend(first, [50, 51])
    cache.publish(first, 8)
    assert cache.adopt_prefix(Sequence("c"), [0, 1, 2, 3, 4, 5, 50, 51, 99]) == 8
    assert cache.adopt_prefix(Sequence("d"), [*range(8), 99]) == 8


def test_a_page_is_adopted_at_a_page_border_only() -> None:
    cache, _ = cache_with(list(range(8)))
    within = Sequence("b")
    cache.extend(within, list(range(6)))
    assert cache.adopt_prefix(within, [4, 5, 6, 7, 99]) == 0
    assert list(within.tokens) == list(range(6))


def test_a_rewound_sequence_keeps_what_is_coming_anyway() -> None:
    for coming, kept in (([5, 6, 7], 3), ([5, 6, 99], 2), ([99, 6, 7], 0), ([5, 6, 7, 8, 9, 10, 11, 12], 7), ([], 0)):
        cache, first = cache_with(list(range(12)))
        assert cache.rewind(first, 5, coming) == kept, coming
        assert list(first.tokens) == list(range(5 + kept))
    with pytest.raises(SequenceTooShortError):
        cache.rewind(first, 6, [5])


def test_a_fork_shares_every_page_until_either_writes_and_has_its_names() -> None:
    cache, first = cache_with(list(range(6)))
    fork = cache.fork(first, "f")
    assert (fork.tokens, fork.pages, fork.keys, fork.is_fork) == (first.tokens, first.pages, first.keys, True)
    shared = first.pages[1]
    cache.extend(fork, [50])
    assert fork.pages[0] == first.pages[0] and fork.pages[1] != shared == first.pages[1]
    assert [(copy.source, copy.destination) for copy in cache.take_copies()] == [(shared, fork.pages[1])]
    cache.extend(first, [60])
    assert cache.take_copies() == [] and first.pages[1] == shared, "it is the only one that writes there now"
    cache.release(fork)
    assert not (fork.tokens or fork.pages or fork.keys) and len(first.keys) == 1
    cache.release(first)
    cache.pool.check()
    assert cache.pool.counts().held == 0


def test_what_was_found_longest_ago_makes_room_first() -> None:
    cache = SequenceCache(PagePool(3), 1)
    keys = [b"a", b"b", b"c"]
    pages = [cache.pool.allocate() for _ in keys]
    for page, key in zip(pages, keys, strict=True):
        cache.pool.publish(page, key)
        cache.pool.release(page)
    cache.pool.acquire(pages[0])
    cache.pool.release(pages[0])
    for gone in (1, 2, 0):
        assert cache.pool.find(keys[gone]) == pages[gone]
        assert cache.pool.allocate() == pages[gone]
        assert cache.pool.find(keys[gone]) is None
    with pytest.raises(OutOfPagesError, match="all 3 KV pages are held") as caught:
        cache.pool.allocate()
    assert caught.value.metadata == {"page_count": "3"}


def test_the_first_page_published_under_a_key_stays_the_one_found() -> None:
    pool = PagePool(4)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, b"key")
    pool.publish(second, b"key")
    pool.publish(first, b"other")
    assert (pool.find(b"key"), pool.find(b"other")) == (first, None)
    assert (pool.writable(first), pool.writable(second)) == (False, True)
    pool.acquire(second)
    assert not pool.writable(second)
    pool.release(second)
    pool.release(second)
    assert pool.counts() == PageCounts(4, free=3, held=1, cached=0)
    pool.release(first)
    assert pool.counts() == PageCounts(4, free=3, held=0, cached=1)


def test_all_pages_but_the_padding_page_are_handed_out_once() -> None:
    pool = PagePool(70)
    pages = sorted(pool.allocate() for _ in range(70))
    assert pages == list(range(1, 71)) and PADDING_PAGE not in pages
    with pytest.raises(OutOfPagesError):
        pool.allocate()


def test_a_new_sequence_begins_at_any_of_the_tried_starts_that_is_free() -> None:
    pool = PagePool(_START_TRIALS * _STRIDE)
    starts = [pool.allocate() for _ in range(_START_TRIALS)]
    assert starts == list(range(1, pool.page_count, _STRIDE))
    pool.allocate(after=starts[0])
    pool.release(starts[-1])
    pool.release(starts[0] + 1)  # the page that is taken first where no start is free
    assert pool.allocate() == starts[-1]


def test_uncommitted_tokens_are_never_shared() -> None:
    cache, _ = cache_with(list(range(8)), published=False)
    assert cache.adopt_prefix(Sequence("b"), list(range(9))) == 0


def test_a_closed_sequence_stays_findable_until_its_room_is_needed() -> None:
    cache, first = cache_with(list(range(8)))
    cache.release(first)
    assert cache.pool.counts().cached == 2
    assert cache.adopt_prefix(Sequence("b"), list(range(9))) == 8
    cache, first = cache_with(list(range(8)))
    cache.release(first)
    cache.extend(Sequence("c"), [7] * (PAGE_COUNT * PAGE_SIZE))
    assert cache.pool.counts().cached == 0
    assert cache.adopt_prefix(Sequence("d"), list(range(9))) == 0


def test_rewriting_a_published_page_copies_it() -> None:
    cache, first = cache_with(list(range(8)))
    published = first.pages[1]
    cache.truncate(first, 6)
    cache.extend(first, [50])
    assert first.pages[1] != published
    assert [copy.source for copy in cache.take_copies()] == [published]


def test_sequences_that_grow_side_by_side_keep_their_pages_in_a_row() -> None:
    cache = SequenceCache(PagePool(256), PAGE_SIZE)
    sequences = [Sequence(str(index)) for index in range(4)]
    for _ in range(30):
        for sequence in sequences:
            cache.extend(sequence, [1] * 3)
    for sequence in sequences:
        cache.truncate(sequence, 40)
        cache.extend(sequence, [2] * 30)
        assert sequence.pages == list(range(sequence.pages[0], sequence.pages[0] + len(sequence.pages)))


def test_truncating_past_the_end_names_the_cached_length() -> None:
    cache, first = cache_with(list(range(5)))
    with pytest.raises(SequenceTooShortError, match="5 tokens are cached") as caught:
        cache.truncate(first, 6)
    assert caught.value.metadata == {"cached_length": "5"}
    assert len(first) == 5


def test_an_extension_that_does_not_fit_changes_nothing() -> None:
    cache, first = cache_with(list(range(5)))
    before = (first.tokens[:], list(first.pages), cache.pool.counts())
    with pytest.raises(OutOfPagesError):
        cache.extend(first, [1] * 100)
    assert (first.tokens, first.pages, cache.pool.counts()) == before
