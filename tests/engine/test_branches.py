"""Branches of a draft's guesses: other likely choices, continued on forks of the sequence."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from draft_service.worth import BRANCH_STEP_SECONDS, DraftWorth
from slipstream.engine.arithmetic import ArithmeticBackend, ArithmeticSettings
from slipstream.engine.errors import StaleRoundError, UnknownHandleError
from slipstream.engine.hinting.hints import Hint, Source
from slipstream.sampling.rule import SamplingRule
from slipstream.step_times import StepTimes
from tests.engine.test_guesses import Ear, Gate, guessing
from tests.engine.test_runs import Bench, bench, prompt_of

SLOW = ArithmeticSettings(ends=0, agreement=0.7, spread=0.7, forward_ms=1.5e3 * BRANCH_STEP_SECONDS)
MODEL = ArithmeticBackend(SLOW)


def choices(tokens: list[int]) -> list[int]:
    """The draft's likeliest choices after some tokens."""
    return MODEL._ranked(sum(tokens), len(tokens), is_known=True)


def check(ear: Ear, hint: Hint) -> None:
    """A hint has likely choices only, and ends with the draft's own."""
    tokens = ear.committed[: hint.start]
    for token in hint.tokens:
        assert token in choices(tokens)[:4]
        own = choices(tokens)[0]
        tokens = [*tokens, token]
    assert hint.tokens[-1] == own


def branches(ear: Ear) -> list[Hint]:
    """Those of the last hints that tell of branches at the committed tokens."""
    start = len(ear.committed)
    return [hint for hint in ear.hints if hint.source is Source.BRANCH and hint.start == start]


async def test_slow_drafts_continue_other_likely_choices() -> None:
    async with guessing(prompt_of(1, 40), settings=SLOW) as (it, ear):
        ear.start()
        await ear.until(lambda: len(branches(ear)) > 5)
        await ear.until(lambda: ear.rests)
        for hint in ear.hints:
            check(ear, hint)
        await it.quiet()
        assert any(len(step) > 1 for step in it.backend.steps)  # beside the base line
        assert it.host.load.held_page_count <= 8  # forks are gone while the job rests


async def test_a_branch_that_the_target_follows_becomes_the_base_line() -> None:
    async with guessing(prompt_of(1, 40), settings=SLOW) as (it, ear):
        ear.start()
        await ear.until(lambda: any(len(own_tokens(ear, hint)) >= 3 for hint in branches(ear)))
        it.backend.may_compute = gate = Gate()
        await asyncio.to_thread(gate.reached.wait, 30)
        hint = max(branches(ear), key=lambda hint: len(own_tokens(ear, hint)))
        own = own_tokens(ear, hint)
        before = len(it.backend.steps)
        ear.commit(hint.tokens[: -len(own)])
        gate.set()
        await ear.until(
            lambda: any(told.start == len(ear.committed) and told.tokens[: len(own)] == own for told in ear.hints)
        )
        (_, count), *_ = it.backend.steps[before + 1]
        assert count == 1  # nothing is read again


def test_branches_are_priced_beside_the_rows_of_other_jobs() -> None:
    """Rows up to eight cost nothing here, and more of them a whole step each."""
    worth = DraftWorth(7, StepTimes([(1, 0.002), (8, 0.002), (16, 0.018)]))
    assert worth.branch_count([0.3, 0.2, 0.1], 0.9, 1) == 3
    assert worth.branch_count([0.3, 0.2, 0.1], 0.9, 6) == 2
    assert worth.branch_count([0.3, 0.2, 0.1], 0.9, 8) == 0


def own_tokens(ear: Ear, hint: Hint) -> tuple[int, ...]:
    """The draft's own choices at the end of a hint."""
    at = len(hint.tokens)
    while at and is_own(ear, hint, at - 1):
        at -= 1
    return hint.tokens[at:]


def is_own(ear: Ear, hint: Hint, at: int) -> bool:
    """True if a hint's token is the draft's own choice."""
    return choices([*ear.committed[: hint.start], *hint.tokens[:at]])[0] == hint.tokens[at]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("page_count", [60, 4000])
async def test_random_commits_leave_the_right_tokens_and_all_pages(seed: int, page_count: int) -> None:
    """Commits that follow the base line, a branch or nothing, for handles that stop, start again,
    close, and take pages from one another."""
    rng = random.Random(seed)
    async with bench(page_count, settings=SLOW) as it:
        worth = DraftWorth(7, it.host.step_times)
        ears = [Ear(it, worth, f"h{index}", prompt_of(index, rng.randint(1, 60))).start() for index in range(3)]
        branch_count = 0
        for _ in range(150):
            index = rng.randrange(3)
            ear = ears[index]
            current = [hint for hint in ear.hints if hint.start == len(ear.committed)]
            if current and rng.random() < 0.8:
                tokens = list(rng.choice(current).tokens)
                tokens = tokens[: rng.randint(1, len(tokens))]
            else:
                tokens = [rng.randint(3, 250)]
            branch_count += any(hint.source is Source.BRANCH for hint in current)
            ear.commit(tokens)
            for hint in ear.hints[-20:]:
                check(ear, hint)
            if rng.random() < 0.1 or len(ear.committed) > 150:
                ears[index] = await restarted(it, ear, rng)
            await asyncio.sleep(rng.choice([0, 0.002, 0.008]))
        for ear in ears:
            it.host.stop_run(ear.handle, ear.number)
            await asyncio.wait_for(ear.over, 30)
            assert ear.hints
        assert branch_count


async def restarted(it: Bench, ear: Ear, rng: random.Random) -> Ear:
    """End guesses in one of three ways, and start newer ones."""
    handle, committed = ear.handle, ear.committed[: rng.randint(1, 60)]
    error: type[Exception] | None = None
    way = rng.choice(["stop", "newer", "close"])
    if way == "stop":
        it.host.stop_run(ear.handle, ear.number)
    elif way == "close":
        it.host.close_handle(ear.handle)
        handle, error = f"{ear.handle}+", UnknownHandleError
    newer = Ear(it, ear.worth, handle, committed).start()
    if way == "newer":
        error = StaleRoundError
    if error is None:
        with suppress(StaleRoundError):  # the newer start may come before the stop takes effect
            await asyncio.wait_for(ear.over, 30)
    else:
        with pytest.raises(error):
            await asyncio.wait_for(ear.over, 30)
    return newer


async def test_a_short_pool_has_no_branches() -> None:
    async with guessing(prompt_of(1, 40), settings=SLOW, page_count=7) as (it, ear):
        ear.start(until=112)
        await ear.until(lambda: ear.rests)
        await it.quiet()
        assert not branches(ear)


async def test_no_branch_begins_with_an_end_token() -> None:
    prompt = prompt_of(1, 40)
    rule = SamplingRule(end_token_ids=tuple(choices(prompt)[1:]))
    async with guessing(prompt, settings=SLOW) as (it, ear):
        ear.start(rule=rule)
        await ear.until(lambda: len(branches(ear)) > 2)
        await it.quiet()
        for hint in ear.hints:
            assert hint.tokens[0] == choices(prompt)[0]
            assert not set(hint.tokens[:-1]) & rule.ends
            check(ear, hint)


async def test_a_failed_forward_on_a_branch_gives_all_pages_back() -> None:
    async with guessing(prompt_of(1, 40), settings=SLOW) as (it, ear):
        ear.start()
        await ear.until(lambda: len(branches(ear)) > 2)
        it.backend.may_compute = gate = Gate()
        ear.commit(branches(ear)[-1].tokens[:1])
        await asyncio.to_thread(gate.reached.wait, 30)
        it.backend.failures = 1
        gate.set()
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(ear.over, 30)
