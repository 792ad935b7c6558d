"""Choices of a draft on the device that has its logits, so that its next step begins without the
host.

The noise and its winner follow `slipstream.sampling.kernel`, and so do top-k, top-p and min-p. But
logarithms and sums are the device's. So once in a long while two tokens that are nearly equal
change places. A draft only guesses, so this costs a rejected token. A target's choices are always
made on the host.

One program for each section of a row reads its tokens. Before that, one program for each row finds
what a top-k and a min-p keep. After it, one program finds the row's winner and checks whether a
top-p keeps it. If not, the race is run again among the tokens that it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from slipstream.sampling.kernel import BLOCK, Domain
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule

_SECTION_BLOCKS = 16
"""Blocks of a section, which one program reads."""
_TOGETHER = 8192
"""Tokens that a row's program reads at once when it reads the whole row."""
_WARPS = 16
"""Warps of such a program."""
_KEPT = 3
"""Numbers of a choice: its token, its margin and its log-probability."""


class Found:
    """Device memory for the results of some rows in a step."""

    def __init__(self, rows: int, sections: int, device: torch.device) -> None:
        self.scores = torch.empty(rows, sections, 2, dtype=torch.float64, device=device)
        """Scores of each section's best two tokens."""
        self.tokens = torch.empty(rows, sections, dtype=torch.int64, device=device)
        self.tops = torch.empty(rows, sections, dtype=torch.float32, device=device)
        """The largest logit of each section, NaN if it has one."""
        self.masses = torch.empty(rows, sections, dtype=torch.float32, device=device)
        """Sum of each section's weights, where its largest weight is 1."""
        self.lowest = torch.empty(rows, dtype=torch.float32, device=device)
        """Lowest logit that is kept."""
        self.kept = torch.empty(rows, dtype=torch.float32, device=device)
        """Mass that a top-p is a share of: the mass that a top-k keeps, or less than 0 for all of
        it."""
        self.is_settled = torch.empty(rows, dtype=torch.int32, device=device)
        self.next_tokens = torch.empty(rows, dtype=torch.int64, device=device)
        """Choices of the last step."""


class Chooser:
    """Chooses for up to ``most_rows`` rows of ``vocabulary_size`` logits, step after step. One
    thread at a time may use it."""

    def __init__(self, vocabulary_size: int, most_rows: int, device: torch.device) -> None:
        self._size = vocabulary_size
        self._sections = -(-vocabulary_size // (_SECTION_BLOCKS * BLOCK))
        self._found = Found(most_rows, self._sections, device)
        self._words = torch.empty(3, most_rows, dtype=torch.int64, device=device)
        self._numbers = torch.empty(3, most_rows, dtype=torch.float64, device=device)
        self._choices = self._arrived = torch.empty(0, most_rows, _KEPT, dtype=torch.float64)
        self._events: list[torch.cuda.Event] = []
        self._rows = slice(0)
        self._done = self._arrived_count = 0
        self._is_bounded = self._is_nucleus = False

    def compile_kernels(self, dtype: torch.dtype) -> None:
        """Compile all kernels that it may need for logits of this type."""
        logits = torch.zeros(1, self._size, dtype=dtype, device=self._words.device)
        for top_p in (1.0, 0.9):
            for top_k in (0, 5):
                self.begin_run([SamplingRule(temperature=1.0, top_p=top_p, top_k=top_k)], [0], 1)
                self.choose(logits)

    def begin_run(self, rules: Sequence[SamplingRule], positions: Sequence[int], step_count: int) -> None:
        """Start a run of at most ``step_count`` steps of rows with these rules, whose first choices
        are at ``positions``."""
        count = len(rules)
        seeds = np.array([rule.seed for rule in rules], dtype=np.uint64).view(np.int64)
        words = np.stack([seeds, np.array(positions), np.array([rule.top_k for rule in rules])])
        numbers = np.array([[rule.temperature, rule.top_p, rule.min_p] for rule in rules], dtype=np.float64).T
        self._words[:, :count].copy_(torch.from_numpy(words))
        self._numbers[:, :count].copy_(torch.from_numpy(numbers.copy()))
        drawn = [rule for rule in rules if rule.temperature > 0]
        self._is_bounded = any(rule.top_k > 0 or rule.min_p > 0 for rule in drawn)
        self._is_nucleus = any(rule.top_p < 1 for rule in drawn)
        self._make_room(step_count)
        self._rows, self._done, self._arrived_count = slice(count), 0, 0

    def choose(self, logits: torch.Tensor) -> None:
        """Choose from the next step's logits ``[rows, vocabulary]``."""
        step = self._done
        if self._is_bounded:
            self._bound(logits)
        self._race(logits, step, again=False)
        self._settle(logits, step, again=False)
        if self._is_nucleus:
            self._race(logits, step, again=True)
            self._settle(logits, step, again=True)
        if self._events:
            self._arrived[step, self._rows].copy_(self._choices[step, self._rows], non_blocking=True)
            self._events[step].record()
        self._done += 1

    def next_tokens(self) -> torch.Tensor:
        """Return the last step's choices, int64 ``[rows]`` on the device. The next step overwrites
        them."""
        return self._found.next_tokens[self._rows]

    def arrived_tokens(self) -> list[list[int]]:
        """Return the tokens of each step that has reached the host since the last call."""
        begin = self._arrived_count
        while self._arrived_count < self._done and (
            not self._events or _has_arrived(self._events[self._arrived_count])
        ):
            self._arrived_count += 1
        steps: list[list[int]] = self._arrived[begin : self._arrived_count, self._rows, 0].long().tolist()
        return steps

    def fetch(self) -> list[list[Choice]]:
        """Return the choices of all steps before the first one with a logit that is not finite."""
        if self._events:
            self._events[self._done - 1].synchronize()
        kept = self._arrived[: self._done, self._rows].numpy()
        finite = np.isfinite(kept[:, :, 2]).all(axis=1)
        count = self._done if finite.all() else int(finite.argmin())
        return [
            [Choice(int(token), margin, logprob) for token, margin, logprob in rows] for rows in kept[:count].tolist()
        ]

    def _make_room(self, step_count: int) -> None:
        """Make room for the choices of ``step_count`` steps, on the device and on the host."""
        if step_count <= len(self._choices):
            return
        device = self._words.device
        shape = step_count, self._words.shape[1], _KEPT
        self._choices = self._arrived = torch.empty(shape, dtype=torch.float64, device=device)
        if device.type == "cuda":
            self._arrived = torch.empty(shape, dtype=torch.float64, pin_memory=True)
            self._events = [torch.cuda.Event() for _ in range(step_count)]  # type: ignore[no-untyped-call]

    def _bound(self, logits: torch.Tensor) -> None:
        found = self._found
        _bound[len(logits),](
            logits,
            self._words,
            self._numbers,
            found.lowest,
            found.kept,
            logits.stride(0),
            self._words.shape[1],
            self._size,
            together=min(_TOGETHER, triton.next_power_of_2(self._size)),
            low_bits=32 - 8 * logits.itemsize,
            num_warps=_WARPS,
        )

    def _race(self, logits: torch.Tensor, step: int, *, again: bool) -> None:
        found = self._found
        _race[len(logits), self._sections](
            *self._tables(logits),
            found.is_settled,
            logits.stride(0),
            self._words.shape[1],
            self._size,
            step,
            bounded=self._is_bounded or again,
            again=again,
            blocks=_SECTION_BLOCKS,
        )

    def _settle(self, logits: torch.Tensor, step: int, *, again: bool) -> None:
        found = self._found
        _settle[len(logits),](
            *self._tables(logits),
            found.kept,
            found.is_settled,
            found.next_tokens,
            self._choices,
            logits.stride(0),
            self._words.shape[1],
            self._size,
            self._sections,
            step,
            bounded=self._is_bounded,
            nucleus=self._is_nucleus,
            again=again,
            lanes=triton.next_power_of_2(self._sections),
            together=min(_TOGETHER, triton.next_power_of_2(self._size)),
            low_bits=32 - 8 * logits.itemsize,
            num_warps=_WARPS if self._is_bounded or self._is_nucleus else 4,
        )

    def _tables(self, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the first arguments of both the race and its settlement."""
        found = self._found
        tables = found.scores, found.tokens, found.tops, found.masses, found.lowest
        return (logits, self._words, self._numbers, *tables)


def _has_arrived(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]


BLOCK_TOKENS = tl.constexpr(BLOCK)
GROUP = tl.constexpr(4)
"""Words of a counter."""
FIRST, SECOND, OTHERS = tl.constexpr(Domain.FIRST), tl.constexpr(Domain.SECOND), tl.constexpr(Domain.OTHERS)
MULTIPLIER, OTHER_MULTIPLIER = tl.constexpr(0xD2E7470EE14C6C93), tl.constexpr(0xCA5A826395121157)
WEYL, OTHER_WEYL = tl.constexpr(0x9E3779B97F4A7C15), tl.constexpr(0xBB67AE8584CAA73B)
ROUNDS = tl.constexpr(10)
UNUSED_BITS = tl.constexpr(12)
KEPT = tl.constexpr(_KEPT)
NO_TOKEN = tl.constexpr(2**62)


@triton.jit
def _four_words(seed, position, domain: tl.constexpr, index):
    """Compute `slipstream.sampling.kernel.four_words` of counters, whose index is that of a word
    divided by four. All numbers are uint64."""
    first = index + 1
    second = tl.zeros_like(index) + position
    third = tl.zeros_like(index) + domain
    fourth = tl.zeros_like(index)
    key = tl.zeros_like(index) + seed
    other_key = tl.zeros_like(index)
    multiplier = tl.full(index.shape, MULTIPLIER, tl.uint64)
    other_multiplier = tl.full(index.shape, OTHER_MULTIPLIER, tl.uint64)
    weyl = tl.full(index.shape, WEYL, tl.uint64)
    other_weyl = tl.full(index.shape, OTHER_WEYL, tl.uint64)
    for _ in tl.static_range(ROUNDS):
        low, high = first * multiplier, tl.umulhi(first, multiplier)
        other_low, other_high = third * other_multiplier, tl.umulhi(third, other_multiplier)
        first, second, third, fourth = other_high ^ second ^ key, other_low, high ^ fourth ^ other_key, low
        key, other_key = key + weyl, other_key + other_weyl
    return first, second, third, fourth


@triton.jit
def _word_of(seed, position, domain: tl.constexpr, index):
    """Return the words of some indices."""
    first, second, third, fourth = _four_words(seed, position, domain, index // GROUP)
    place = index % GROUP
    return tl.where(place == 0, first, tl.where(place == 1, second, tl.where(place == 2, third, fourth)))


@triton.jit
def _wait(word):
    """Return an exponential variable with mean 1, float64."""
    return -tl.log(((word >> UNUSED_BITS).to(tl.float64) + 0.5) * (1.0 / (1 << 52)))


@triton.jit
def _better(best, second, token, score, other):
    """Return the best two of the tokens so far and another one, which has a higher id than the
    best."""
    is_better = score > best
    second = tl.maximum(second, tl.where(is_better, best, score))
    return tl.where(is_better, score, best), second, tl.where(is_better, other, token)


@triton.jit(do_not_specialize=["row_stride", "most_rows", "size", "step"])
def _race(
    logits,
    words,
    numbers,
    scores,
    tokens,
    tops,
    masses,
    lowest,
    is_settled,
    row_stride,
    most_rows,
    size,
    step,
    bounded: tl.constexpr,
    again: tl.constexpr,
    blocks: tl.constexpr,
):
    """Race a section of a row: find its best tokens by logit and noise among those still kept, its
    largest logit and its mass."""
    row, section = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if again:  # noqa: SIM102 # known when it is compiled
        if tl.load(is_settled + row) != 0:
            return
    least = tl.load(lowest + row) if bounded else float("-inf")
    temperature = tl.load(numbers + row)
    block = (section * blocks + tl.arange(0, blocks)).to(tl.int64)[:, None]
    group = tl.arange(0, BLOCK_TOKENS // GROUP).to(tl.int64)[None, :]
    start = block * BLOCK_TOKENS + group * GROUP
    own = logits + row * row_stride
    value0 = tl.load(own + start, mask=start < size, other=float("-inf")).to(tl.float32)
    value1 = tl.load(own + start + 1, mask=start + 1 < size, other=float("-inf")).to(tl.float32)
    value2 = tl.load(own + start + 2, mask=start + 2 < size, other=float("-inf")).to(tl.float32)
    value3 = tl.load(own + start + 3, mask=start + 3 < size, other=float("-inf")).to(tl.float32)
    place = row * tl.num_programs(1) + section
    if not again:
        top = _largest(tl.maximum(tl.maximum(value0, value1), tl.maximum(value2, value3)))
        finite_top = tl.where(top == float("-inf"), 0.0, top)
        sharpness = (1.0 / tl.where(temperature > 0, temperature, 1.0)).to(tl.float32)
        weights = tl.exp((value0 - finite_top) * sharpness) + tl.exp((value1 - finite_top) * sharpness)
        weights += tl.exp((value2 - finite_top) * sharpness) + tl.exp((value3 - finite_top) * sharpness)
        strange = (value0 != value0) | (value1 != value1) | (value2 != value2) | (value3 != value3)
        tl.store(tops + place, tl.where(_largest(strange.to(tl.int32)) > 0, float("nan"), top))
        tl.store(masses + place, tl.sum(tl.sum(weights, axis=1), axis=0))
    if temperature > 0:
        seed, position = tl.load(words + row).to(tl.uint64), (tl.load(words + most_rows + row) + step).to(tl.uint64)
        word = _word_of(seed, position, FIRST, block.to(tl.uint64))
        first = _wait(word) / BLOCK_TOKENS
        first_place = (word % BLOCK_TOKENS).to(tl.int64)
        later = first + _wait(_word_of(seed, position, SECOND, block.to(tl.uint64))) / (BLOCK_TOKENS - 1)
        word0, word1, word2, word3 = _four_words(
            seed, position, OTHERS, (block * (BLOCK_TOKENS // GROUP) + group).to(tl.uint64)
        )
        in_block = group * GROUP
        wait0 = tl.where(in_block == first_place, float("inf"), _wait(word0))
        wait1 = tl.where(in_block + 1 == first_place, float("inf"), _wait(word1))
        wait2 = tl.where(in_block + 2 == first_place, float("inf"), _wait(word2))
        wait3 = tl.where(in_block + 3 == first_place, float("inf"), _wait(word3))
        soonest = tl.min(tl.minimum(tl.minimum(wait0, wait1), tl.minimum(wait2, wait3)), axis=1)[:, None]
        later -= soonest
        sharpest = temperature.to(tl.float32)
        score0 = _score(value0, sharpest, least, tl.where(in_block == first_place, first, wait0 + later))
        score1 = _score(value1, sharpest, least, tl.where(in_block + 1 == first_place, first, wait1 + later))
        score2 = _score(value2, sharpest, least, tl.where(in_block + 2 == first_place, first, wait2 + later))
        score3 = _score(value3, sharpest, least, tl.where(in_block + 3 == first_place, first, wait3 + later))
    else:
        score0, score1 = value0.to(tl.float64), value1.to(tl.float64)
        score2, score3 = value2.to(tl.float64), value3.to(tl.float64)
    best, second, token = _better(score0, tl.full(score0.shape, float("-inf"), tl.float64), start, score1, start + 1)
    best, second, token = _better(best, second, token, score2, start + 2)
    best, second, token = _better(best, second, token, score3, start + 3)
    top_score = _largest(best)
    winner = -_largest(-tl.where(best == top_score, token, NO_TOKEN))
    tl.store(tokens + place, winner)
    tl.store(scores + 2 * place, top_score)
    tl.store(scores + 2 * place + 1, _largest(tl.where(token == winner, second, best)))


@triton.jit(do_not_specialize=["row_stride", "most_rows", "size"])
def _bound(
    logits,
    words,
    numbers,
    lowest,
    kept_masses,
    row_stride,
    most_rows,
    size,
    together: tl.constexpr,
    low_bits: tl.constexpr,
):
    """Find the lowest logit that a row's top-k and min-p keep, and the mass of what a top-k
    keeps."""
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * row_stride
    temperature, min_p = tl.load(numbers + row), tl.load(numbers + 2 * most_rows + row)
    top_k = tl.load(words + 2 * most_rows + row)
    least, kept = tl.full([], float("-inf"), tl.float32), tl.full([], -1.0, tl.float32)
    if (temperature > 0) & ((top_k > 0) | (min_p > 0)):
        largest = tl.full([], float("-inf"), tl.float32)
        for start in range(0, size, together):
            token = start + tl.arange(0, together)
            value = tl.load(own + token, mask=token < size, other=float("-inf")).to(tl.float32)
            largest = tl.maximum(largest, tl.max(value, axis=0))
        if (top_k > 0) & (top_k < size):
            sharpness = (1.0 / temperature).to(tl.float32)
            least = _border(own, top_k, largest, sharpness, size, together, low_bits, False)
            kept = _mass(own, least, largest, sharpness, size, together)
        if min_p > 0:
            least = tl.maximum(least, (largest + temperature * tl.log(min_p)).to(tl.float32))
    tl.store(lowest + row, least)
    tl.store(kept_masses + row, kept)


@triton.jit
def _largest(tile):
    """Return the largest number of a tile of two dimensions."""
    return tl.max(tl.max(tile, axis=1), axis=0)


@triton.jit
def _score(value, temperature, least, time):
    """Return a logit over the temperature, with noise; -inf if it is not kept."""
    return tl.where(value >= least, (value / temperature).to(tl.float64) - tl.log(time), float("-inf"))


@triton.jit(do_not_specialize=["row_stride", "most_rows", "size", "sections", "step"])
def _settle(
    logits,
    words,
    numbers,
    scores,
    tokens,
    tops,
    masses,
    lowest,
    kept_masses,
    is_settled,
    next_tokens,
    choices,
    row_stride,
    most_rows,
    size,
    sections,
    step,
    bounded: tl.constexpr,
    nucleus: tl.constexpr,
    again: tl.constexpr,
    lanes: tl.constexpr,
    together: tl.constexpr,
    low_bits: tl.constexpr,
):
    """Choose the best token of a row's sections if its top-p keeps it. Otherwise find what the
    top-p keeps, and race those tokens again."""
    row = tl.program_id(0).to(tl.int64)
    if again:  # noqa: SIM102
        if tl.load(is_settled + row) != 0:
            return
    section = tl.arange(0, lanes)
    is_there = section < sections
    place = row * sections + section
    best = tl.load(scores + 2 * place, mask=is_there, other=float("-inf"))
    seconds = tl.load(scores + 2 * place + 1, mask=is_there, other=float("-inf"))
    own_tokens = tl.load(tokens + place, mask=is_there, other=NO_TOKEN)
    section_tops = tl.load(tops + place, mask=is_there, other=float("-inf"))
    section_masses = tl.load(masses + place, mask=is_there, other=0.0)
    score = tl.max(best, axis=0)
    token = tl.min(tl.where(best == score, own_tokens, NO_TOKEN), axis=0)
    token = tl.where(token < size, token, 0)  # where no score is a number
    second = tl.max(tl.where(own_tokens == token, seconds, best), axis=0)
    largest = tl.max(section_tops, axis=0)
    is_strange = tl.max((section_tops != section_tops).to(tl.int32), axis=0) > 0
    temperature = tl.load(numbers + row)
    sharpness = (1.0 / tl.where(temperature > 0, temperature, 1.0)).to(tl.float32)
    mass = tl.sum(section_masses * tl.exp((section_tops - largest) * sharpness), axis=0)
    own = logits + row * row_stride
    value = tl.load(own + token).to(tl.float32)
    kept = mass
    is_over = tl.full([], 1, tl.int1)
    if bounded or nucleus:
        least = tl.full([], float("-inf"), tl.float32)
        if bounded or again:
            least = tl.load(lowest + row)
        if nucleus and not again:
            whole = mass
            if bounded:
                bounded_mass = tl.load(kept_masses + row)
                whole = tl.where(bounded_mass < 0, mass, bounded_mass)
            top_p = tl.load(numbers + most_rows + row)
            if (temperature > 0) & (top_p < 1) & (value < largest):
                part = (whole * top_p).to(tl.float32)
                if _mass(own, _next_up(value), largest, sharpness, size, together) >= part:
                    least = tl.maximum(least, _border(own, part, largest, sharpness, size, together, low_bits, True))
                    is_over = tl.full([], 0, tl.int1)
            tl.store(lowest + row, least)
            tl.store(is_settled + row, is_over.to(tl.int32))
        if least > float("-inf"):
            kept = _mass(own, least, largest, sharpness, size, together)
    likelihood = (value - largest) * sharpness - tl.log(kept)
    is_strange = is_strange | (largest == float("inf")) | (largest == float("-inf"))
    tl.store(next_tokens + row, token, mask=is_over)
    choice = choices + (step * most_rows + row) * KEPT
    tl.store(choice, token.to(tl.float64), mask=is_over)
    tl.store(choice + 1, tl.where(score == second, 0.0, score - second), mask=is_over)  # infinite ones may be equal
    tl.store(choice + 2, tl.where(is_strange, float("nan"), likelihood).to(tl.float64), mask=is_over)


@triton.jit
def _mass(own, least, largest, sharpness, size, together: tl.constexpr):
    """Return the mass of a row's tokens with at least that logit, where the largest weight is 1."""
    total = tl.zeros([together], dtype=tl.float32)
    for start in range(0, size, together):
        token = start + tl.arange(0, together)
        value = tl.load(own + token, mask=token < size, other=float("-inf")).to(tl.float32)
        total += tl.where(value >= least, tl.exp((value - largest) * sharpness), 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _border(
    own, wanted, largest, sharpness, size, together: tl.constexpr, low_bits: tl.constexpr, by_mass: tl.constexpr
):
    """Find the largest logit such that the row's tokens with at least that logit reach the wanted
    count or mass. It is found bit by bit; the lowest bits are those of no logit."""
    found = tl.full([], 0, tl.int64)
    for at in range(32 - low_bits):
        tried = found + (tl.full([], 1, tl.int64) << (31 - at))
        reached = tl.zeros([together], dtype=tl.float32)
        for start in range(0, size, together):
            token = start + tl.arange(0, together)
            value = tl.load(own + token, mask=token < size, other=float("-inf")).to(tl.float32)
            rising = value.to(tl.int32, bitcast=True)
            rising = rising ^ ((rising >> 31) & 0x7FFFFFFF)
            is_above = (rising.to(tl.int64) + 0x80000000 >= tried) & (token < size)
            counted = tl.exp((value - largest) * sharpness) if by_mass else 1.0
            reached += tl.where(is_above, counted, 0.0)
        found = tl.where(tl.sum(reached, axis=0) >= wanted, tried, found)
    rising = (found - 0x80000000).to(tl.int32)
    return (rising ^ ((rising >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _next_up(value):
    """Return the least float32 above."""
    bits = value.to(tl.int32, bitcast=True)
    above = tl.where(value == 0, 1, tl.where(bits >= 0, bits + 1, bits - 1))
    return above.to(tl.float32, bitcast=True)
