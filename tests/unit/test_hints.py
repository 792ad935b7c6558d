"""Hints are matched by position: what a brute-force oracle says of any mix of hints, and what is
judged."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.engine.hinting.hints import MOST_HINTS, Hint, HintBox, Maker, Source, stated_odds


def hint(start: int, tokens: Sequence[int], odds: float = 0.8, source: Source = Source.DRAFT, seen: int = 0) -> Hint:
    survivals = tuple(odds ** (index + 1) for index in range(len(tokens)))
    return Hint(start, tuple(tokens), survivals, source, 7, seen)


class Oracle:
    """The rules of matching, word for word: every hint is compared with all chosen tokens, every
    time."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []
        self.chosen: list[int] = []

    def add(self, new: Hint) -> bool:
        if not self.rest(new) and new.start <= len(self.chosen):
            return False
        for old in self.hints:
            if old.source is new.source and self.covers(new, old):
                self.hints.remove(old)
                break
        self.hints.append(new)
        while len(self.hints) > MOST_HINTS:
            self.hints.pop(0)
        return True

    def rest(self, one: Hint) -> tuple[int, ...]:
        """What a hint says after the chosen tokens; nothing if it contradicts them."""
        common = min(len(one.tokens), len(self.chosen) - one.start)
        is_equal = list(one.tokens[:common]) == self.chosen[one.start : one.start + common]
        return one.tokens[common:] if is_equal else ()

    def covers(self, new: Hint, old: Hint) -> bool:
        """The new hint says all that the old one still says."""
        if new.start < old.start or new.start > max(old.start, len(self.chosen)) or new.start >= old.end:
            return False
        said = dict(enumerate(new.tokens, new.start))
        return all(said.get(p) == token for p, token in enumerate(old.tokens, old.start) if p >= new.start)

    def candidates(self) -> list[tuple[int, ...]]:
        length = len(self.chosen)
        kept = [one for one in self.hints if one.start > length or self.rest(one)]
        found = [self.rest(one) for one in kept if one.start <= length]
        self.hints = kept
        return found[::-1]


actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("hint"),
            st.integers(-12, 12),  # from the length
            st.integers(1, 64),
            st.integers(0, 70),  # first wrong token
            st.sampled_from(Source),
        ),
        st.tuples(st.just("again"), st.integers(0, 20)),
        st.tuples(st.just("step"), st.integers(1, 20)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), actions)
def test_candidates_are_those_of_the_oracle(seed: int, script: list[tuple[object, ...]]) -> None:
    """Hints are right, late, repeated, contradictory or past the end; tokens repeat, so that texts
    coincide."""
    draw = random.Random(seed)
    truth = [draw.randrange(3) for _ in range(2000)]
    box, oracle = HintBox(), Oracle()
    oracle.chosen = truth[:5]
    sent = [hint(5, [truth[5]])]
    for action in script:
        if action[0] == "step":
            oracle.chosen = truth[: len(oracle.chosen) + int(str(action[1]))]
        else:
            if action[0] == "hint":
                _, offset, count, wrong, source = action
                start = max(0, len(oracle.chosen) + int(str(offset)))
                tokens = truth[start : start + int(str(count))]
                if int(str(wrong)) < len(tokens):
                    tokens[int(str(wrong))] = (tokens[int(str(wrong))] + 1) % 3
                assert isinstance(source, Source)
                sent.append(hint(start, tokens, source=source))
            new = sent[-1 - int(str(action[1])) % len(sent)] if action[0] == "again" else sent[-1]
            assert box.add(new, oracle.chosen) == oracle.add(new)
        assert [candidate.tokens for candidate in box.candidates(oracle.chosen)] == oracle.candidates()
        assert len(box) == len(oracle.hints) <= MOST_HINTS


def test_the_rest_of_a_hint_that_the_run_has_passed_still_counts() -> None:
    box = HintBox()
    box.add(hint(2, [3, 4, 5]), [1, 2])
    assert box.candidates([1, 2, 3])[0].tokens == (4, 5)
    assert box.candidates([1, 2, 3])[0].odds == pytest.approx((0.8, 0.8))


def test_a_hint_for_later_is_kept_until_the_run_reaches_it() -> None:
    box = HintBox()
    box.add(hint(4, [5, 6]), [1, 2])
    assert not box.candidates([1, 2])
    assert box.candidates([1, 2, 3, 4])[0].tokens == (5, 6)


def test_an_equal_hint_and_a_longer_one_replace_it() -> None:
    box = HintBox()
    for tokens in ([3, 4], [3, 4], [3, 4, 5]):
        box.add(hint(2, tokens), [1, 2])
    assert len(box) == 1
    box.candidates([1, 2, 3])
    box.add(hint(3, [4, 5, 6]), [1, 2, 3])
    assert [candidate.tokens for candidate in box.candidates([1, 2, 3])] == [(4, 5, 6)]


def test_another_makers_equal_hint_replaces_nothing() -> None:
    box = HintBox()
    box.add(hint(2, [3, 4]), [1, 2])
    box.add(hint(2, [3, 4], source=Source.NGRAM), [1, 2])
    assert len(box) == 2


def test_the_newest_hints_stay() -> None:
    box = HintBox()
    for token in range(MOST_HINTS + 2):
        box.add(hint(2, [token]), [1, 2])
    newest_first = [(token,) for token in range(MOST_HINTS + 1, 1, -1)]
    assert [candidate.tokens for candidate in box.candidates([1, 2])] == newest_first


def test_a_hint_that_contradicts_the_text_pushes_out_none() -> None:
    box = HintBox()
    for token in range(MOST_HINTS):
        box.add(hint(2, [token]), [1, 2])
    assert not box.add(hint(1, [9, 9]), [1, 2])
    assert not box.add(hint(0, [1, 2]), [1, 2])
    assert len(box.candidates([1, 2])) == MOST_HINTS


def judged(box_hints: Sequence[Hint], chosen: Sequence[int], lengths: Sequence[int]) -> list[tuple[float, bool]]:
    seen: list[tuple[Maker, float, bool]] = []
    box = HintBox(lambda *outcome: seen.append(outcome))
    for one in box_hints:
        box.add(one, chosen[: lengths[0]])
    for length in lengths:
        box.candidates(chosen[:length])
    return [(round(odds, 6), is_right) for _, odds, is_right in seen]


def test_each_token_is_judged_once_even_if_it_was_never_verified() -> None:
    chosen = [1, 2, 3, 4, 9, 9]
    assert judged([hint(2, [3, 4, 5, 6], seen=2)], chosen, [3, 4, 5, 6]) == [(0.8, True), (0.8, True), (0.8, False)]
    assert judged([hint(2, [3, 4, 5, 6], seen=2)] * 3, chosen, [6]) == [(0.8, True), (0.8, True), (0.8, False)]


def test_a_late_hint_is_judged_and_what_its_maker_knew_is_not() -> None:
    chosen = [1, 2, 3, 4, 5, 6]
    assert len(judged([hint(2, [3, 4, 5], seen=2)], chosen, [6])) == 3
    assert len(judged([hint(2, [3, 4, 5], seen=4)], chosen, [6])) == 1
    assert judged([hint(2, [3, 4, 5], seen=6)], chosen, [6]) == []


def test_a_stale_line_is_judged_wrong_only_once() -> None:
    """A draft that does not know of a rejection yet keeps sending the same wrong token."""
    chosen = [1, 2, 9, 9, 9]
    seen: list[tuple[Maker, float, bool]] = []
    box = HintBox(lambda *outcome: seen.append(outcome))
    for length in (3, 4, 5):
        box.add(hint(2, [3, 4, 5, 6][: length - 1], seen=2), chosen[:length])
        box.candidates(chosen[:length])
    assert [is_right for _, _, is_right in seen] == [False]


def test_a_branch_whose_context_did_not_come_about_is_not_judged() -> None:
    assert judged([hint(3, [7, 8], source=Source.BRANCH, seen=2)], [1, 2, 3, 4, 5], [5]) == []
    assert judged([hint(3, [7, 8], source=Source.BRANCH, seen=2)], [1, 2, 3, 7, 5], [5]) == [(0.8, False)]


def test_odds_are_at_most_one_and_zero_after_a_zero() -> None:
    assert stated_odds([0.5, 0.25, 0.9, 0.0, 0.3]) == (0.5, 0.5, 1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("start", "tokens", "survivals", "due"),
    [
        (-1, (1,), (0.5,), None),
        (0, (), (), None),
        (0, (1,) * 65, (0.5,) * 65, None),
        (0, (1, 2), (0.5,), None),
        (0, (1,), (float("nan"),), None),
        (0, (1,), (1.1,), None),
        (0, (1,), (0.5,), float("nan")),
        (0, (1,), (0.5,), float("inf")),
        (0, (1,), (0.5,), -1.0),
    ],
)
def test_a_hint_with_numbers_out_of_range_is_refused(
    start: int, tokens: tuple[int, ...], survivals: tuple[float, ...], due: float | None
) -> None:
    with pytest.raises(ValueError, match=r"hint|survival|next_due"):
        Hint(start, tokens, survivals, Source.OTHER, next_due=due)


def test_no_maker_crowds_out_another() -> None:
    """Two drafts at once: one sends branches without end, the other a single hint."""
    box = HintBox()
    box.add(Hint(4, (7, 8), (0.9, 0.8), Source.DRAFT, source_id=1), [0] * 4)
    for token in range(3 * MOST_HINTS):
        box.add(Hint(4, (100 + token, 9), (0.5, 0.4), Source.BRANCH, source_id=2), [0] * 4)
    kept = box.candidates([0] * 4)
    assert len(kept) == MOST_HINTS
    assert [candidate.hint.source_id for candidate in kept] == [2] * (MOST_HINTS - 1) + [1]
    assert kept[0].tokens[0] == 100 + 3 * MOST_HINTS - 1
