"""Heads over an engine host with a model whose answers can be worked out: they hear of the rows
that became text, their right guesses save steps, and no guess changes a text."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import pytest

from slipstream.engine.engine import Append, Engine
from slipstream.engine.hidden_heads import Guess, Settled
from slipstream.engine.hinting.hints import Source
from slipstream.engine.run_hints import HintTerms, RunStep
from slipstream.engine.run_job import RunEnd
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.sequence import PageCopy
from slipstream.engine.sequence import Sequence as CachedSequence
from tests.engine.test_run_hints import check_steps, hint, start, steps_of
from tests.engine.test_runs import GREEDY, POISON, Backend, Bench, bench, prompt_of, said

HEADS = HintTerms(takes_heads=True)
FIXED = HintTerms(takes_heads=True, fixed_count=4)


class Oracle:
    """Guesses what the arithmetic model says next, and is right with some odds."""

    kind = "oracle"
    source_id = 2**63 + 1

    def __init__(self, odds: float = 1.0, most: int = 4, seconds: float = 0.0, *, reads_all_rows: bool = False) -> None:
        self.odds, self.most, self.seconds, self.reads_all_rows = odds, most, seconds, reads_all_rows
        self.backend: Backend | None = None
        self.calls = 0
        self.asked: list[int] = []
        self.heard: list[Settled] = []
        self.copied: list[PageCopy] = []
        self.raises_at = math.inf
        self._rng = random.Random(1)

    def reserve(self, page_count: int, page_size: int) -> int:
        self.page_count = page_count
        return 0

    def copy_pages(self, copies: list[PageCopy]) -> None:
        self.copied += copies

    def guess(self, settled: Sequence[Settled]) -> list[Guess]:
        self.calls += 1
        if self.calls > self.raises_at:
            raise ZeroDivisionError
        if self.backend is not None:
            self.asked.append(sum(each.most > 0 for each in settled))
            for each in settled:
                self._check(each)
                self.heard.append(each._replace(tokens=[*each.tokens]))
        time.sleep(self.seconds)
        return [self._guess(each) if each.most else Guess() for each in settled]

    @property
    def rows(self) -> list[int]:
        """Positions of the rows that it has heard of."""
        return [row for each in self.heard for row in range(each.start, each.start + each.row_count)]

    def _check(self, each: Settled) -> None:
        """The rows are those of their segment, and their tokens are those that the last forward has
        written to the pages."""
        assert self.backend is not None and each.row_count > 0
        slots = self.backend._slots[list(each.pages)].reshape(-1)
        end = each.start + each.row_count
        assert slots[each.start : end].tolist() == [*each.tokens[each.start : end]]
        assert len(each.tokens) > end
        assert not each.most or (len(each.tokens) == end + 1 and each.logit_row >= 0)
        row = logit_row = 0
        for segment in self.backend.last:
            if (segment.start, segment.pages[0]) == (each.start, each.pages[0]):
                behind = each.row_count - 1 - (len(segment.tokens) - segment.wanted)
                assert (each.first_row, each.logit_row) == (row, logit_row + behind if behind >= 0 else -1)
                return
            row += len(segment.tokens)
            logit_row += segment.wanted
        raise AssertionError("no segment of the last step has these rows")

    def _guess(self, each: Settled) -> Guess:
        right = said([*each.tokens], len(each.tokens) + min(self.most, each.most))
        odds = [self.odds] * len(right)
        tokens = [token if self._rng.random() < self.odds else self._rng.randrange(3, POISON) for token in right]
        return Guess(tuple(tokens), tuple(accumulate(odds, mul)))


def used(steps: Sequence[RunStep]) -> int:
    return sum(step.accepted_count for step in steps if step.source is Source.HEADS)


async def run_of(
    it: Bench, oracle: Oracle, terms: HintTerms = FIXED, count: int = 200, handle: str = "a"
) -> list[RunStep]:
    oracle.backend = it.backend
    prompt = prompt_of(1, 40)
    ear = start(it, handle, prompt, 40 + count, terms=terms)
    assert await ear.end() is RunEnd.UNTIL
    check_steps(ear)
    return steps_of(ear)


async def test_right_guesses_save_steps() -> None:
    oracle = Oracle()
    async with bench(heads=oracle) as it:
        steps = await run_of(it, oracle)
        assert used(steps) == 160 - 1  # four of five, but for the first token
        assert len(it.backend.steps) == 41
        assert it.host._thread.heads.guess_count == 40  # none after the end


async def test_short_runs_rest_if_the_guesses_of_those_before_did_not_pay() -> None:
    oracle = Oracle(0.001)
    async with bench(heads=oracle) as it:
        for number in range(30):
            await run_of(it, oracle, HEADS, 16, f"run {number}")
        assert 4 <= it.host._thread.heads.guess_count <= 30


async def test_a_run_that_did_not_ask_for_heads_gets_no_guess() -> None:
    oracle = Oracle()
    async with bench(heads=oracle) as it:
        steps = await run_of(it, oracle, HintTerms(fixed_count=4))
        assert not used(steps) and not oracle.heard
        assert it.host._thread.heads.guess_count == 0


async def test_heads_that_keep_state_hear_of_each_row_once() -> None:
    """Rows of the prompt count too. Of a run that takes no guesses, heads hear what single steps
    settle."""
    oracle = Oracle(0.7, reads_all_rows=True)
    async with bench(batch_limits=BatchLimits(prefill_chunk=16), heads=oracle) as it:
        for handle, terms in (("a", FIXED), ("b", HintTerms(fixed_count=4)), ("c", FIXED)):
            oracle.heard.clear()
            steps = await run_of(it, oracle, terms, 60, handle)
            assert bool(used(steps)) == terms.takes_heads
            for _ in range(1000):  # they hear of the last step after the caller
                if not terms.takes_heads or oracle.rows[-1] == 98:
                    break
                await asyncio.sleep(0.01)
            first = oracle.rows[0]  # later runs adopt pages of the first
            assert oracle.rows == [*range(first, first + len(oracle.rows))]
            assert oracle.rows[-1] == 98 if terms.takes_heads else oracle.rows[-1] >= 39


@pytest.mark.parametrize("seed", range(3))
async def test_guesses_change_no_text_and_meet_the_right_rows(seed: int) -> None:
    """The runs stand side by side, pause, take pages from one another, and get other hints too."""
    rng, oracle = random.Random(seed), Oracle(0.6, most=6, reads_all_rows=bool(seed % 2))
    limits = BatchLimits(max_step_tokens=rng.choice([24, 512]), prefill_chunk=16)
    async with bench(rng.choice([60, 4000]), limits, heads=oracle) as it:
        oracle.backend = it.backend
        prompts = {f"h{index}": prompt_of(10 * seed + index, rng.randint(1, 60)) for index in range(6)}
        ears = {}
        for handle, prompt in prompts.items():
            terms = HintTerms(rng.random() < 0.3, rng.choice([0, 3]), takes_heads=rng.random() < 0.8)
            ears[handle] = start(it, handle, prompt, len(prompt) + 150, len(prompt) + 20, terms=terms)
        while not all(ear.over.done() for ear in ears.values()):
            for handle, prompt in prompts.items():
                told = len(ears[handle].tokens)
                at = max(0, told + rng.randint(-4, 4))
                hint(it, handle, len(prompt) + at, said(prompt, len(prompt) + at + 5)[at:], rng.choice([0.3, 0.9]))
                it.grant(handle, len(prompt) + told + rng.randint(0, 40))
            await asyncio.sleep(0.001)
        for ear in ears.values():
            assert await ear.end() is RunEnd.UNTIL
            check_steps(ear)
        assert oracle.heard


async def test_heads_guess_for_all_runs_of_a_step_in_one_call() -> None:
    oracle = Oracle()
    async with bench(heads=oracle) as it:
        oracle.backend = it.backend
        it.backend.may_compute.clear()
        ears = [start(it, f"r{index}", prompt_of(index, 20), 120, terms=FIXED) for index in range(5)]
        it.backend.may_compute.set()
        for ear in ears:
            assert await ear.end() is RunEnd.UNTIL
        assert oracle.asked.count(5) > 15


async def test_heads_that_fail_end_and_no_run_does() -> None:
    oracle = Oracle()
    async with bench(heads=oracle) as it:
        oracle.raises_at = oracle.calls + 10
        steps = await run_of(it, oracle)
        assert 10 <= used(steps) <= 40
        calls = oracle.calls
        await run_of(it, oracle, handle="b")
        assert oracle.calls == calls


async def test_guesses_that_are_wrong_rest() -> None:
    oracle = Oracle(0.02)
    async with bench(heads=oracle) as it:
        await run_of(it, oracle, HEADS, 600)
        assert it.host._thread.heads.guess_count < 40


async def test_guesses_that_take_longer_than_they_save_rest() -> None:
    """A step of the arithmetic model takes microseconds, so that five milliseconds never pay."""
    oracle = Oracle(1.0, seconds=0.005)
    async with bench(heads=oracle) as it:
        await run_of(it, oracle, HEADS, 600)
        assert it.host._thread.heads.guess_count < 40


def test_pages_that_are_copied_are_copied_for_the_heads_too() -> None:
    oracle = Oracle()
    engine = Engine(Backend(), kv_memory_mib=1, heads=oracle)
    sequence = CachedSequence("a")
    engine.cache.extend(sequence, [5, 6, 7])
    engine.step([Append(sequence, 3, 1, GREEDY)])
    fork = engine.cache.fork(sequence, "b")
    engine.cache.extend(fork, [8])
    engine.step([Append(fork, 1, 1, GREEDY)])
    assert oracle.copied == [PageCopy(sequence.pages[0], fork.pages[0])]
    assert oracle.page_count == engine.pool.page_count
