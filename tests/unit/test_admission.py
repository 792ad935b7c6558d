"""Admission: permits are bounded and fair, and no request waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from orchestrator.errors import MessageCancelledError, OverloadedError, PrincipalLimitError, ShuttingDownError
from orchestrator.peers.step_curve import StepCurve
from orchestrator.rounds.capacity import MOST_ROUNDS, rounds_at_once
from orchestrator.sessions.admission import admission as admission_module
from orchestrator.sessions.admission.admission import Admission
from orchestrator.sessions.admission.demand import (
    AdmissionPermit,
    AdmissionSettings,
    AdmissionWait,
    Demand,
    releasing_unused,
)
from orchestrator.sessions.admission.principal import ANONYMOUS, Limits, Principal, Priority
from tests.clock import Clock

A, B = Principal("a"), Principal("b")


class Measured:
    """A verifier of two milliseconds a token and twenty a step."""

    def __init__(self, round_count: int = 100, kv_token_count: int = 0, kv_page_size: int = 1) -> None:
        self.round_count = round_count
        self.kv_token_count = kv_token_count
        self.kv_page_size = kv_page_size

    def prompt_seconds(self, token_count: int) -> float:
        return 0.002 * token_count

    def step_seconds(self, token_count: int) -> float:
        return 0.02 + 0.002 * token_count


def demand(principal: Principal = ANONYMOUS, prompt: int = 20, room: int = 40, choices: int = 1) -> Demand:
    return Demand(principal, prompt, prompt, room, choices)


def admission(permits: int | None = 2, queue_seconds: float = 60.0, clock: Clock | None = None) -> Admission:
    settings = AdmissionSettings(permits, queue_seconds)
    return Admission(settings, clock or Clock(), lambda: 0.5)


async def take(door: Admission, wanted: Demand | None = None, seconds: float | None = None) -> AdmissionPermit:
    """A permit, for a turn."""
    (permit, *_) = await door.acquire(wanted or demand(), AdmissionWait(seconds))
    permit.is_in_use = True
    return permit


def asked(door: Admission, wanted: Demand | None = None) -> asyncio.Task[AdmissionPermit]:
    return asyncio.create_task(take(door, wanted))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def a_turn_of(seconds: float, door: Admission, clock: Clock) -> None:
    """So that it is known how long they take."""
    permit = await take(door)
    clock.now += seconds
    permit.release(40)


async def test_as_many_run_as_there_are_places_and_the_next_begins_when_one_has_left() -> None:
    clock = Clock()
    door = admission(2, clock=clock)
    first, _ = await take(door), await take(door)
    third, fourth = asked(door), asked(door)
    await settle()
    assert door.waiting_count == 2
    clock.now += 3
    first.release(40)
    first.release(40)  # once
    await settle()
    assert third.done()
    assert not fourth.done()
    assert (await third).waited == 3
    (await third).release(0)
    await fourth


async def test_who_would_wait_for_longer_than_the_queue_is_told_at_once_when_to_come_back() -> None:
    clock = Clock()
    door = admission(2, queue_seconds=10, clock=clock)
    await a_turn_of(8, door, clock)
    await take(door)
    await take(door)
    waiting = [asked(door), asked(door)]  # one permit comes free in 4 s
    await settle()
    with pytest.raises(OverloadedError) as caught:
        await take(door)
    assert caught.value.retry_after == 10, "twelve, and never more than ten"
    assert [task.done() for task in waiting] == [False, False]
    for task in waiting:
        task.cancel()


async def test_those_refused_are_told_to_come_one_after_another() -> None:
    clock = Clock()
    door = admission(2, queue_seconds=0, clock=clock)
    await a_turn_of(2, door, clock)
    await take(door)
    await take(door)
    seconds = []
    for _ in range(20):
        with pytest.raises(OverloadedError) as caught:
            await take(door)
        seconds.append(caught.value.retry_after)
    assert seconds[:3] == pytest.approx([1.0, 1.7, 2.4])
    assert max(each or 0 for each in seconds) == 10


async def test_a_request_that_waited_for_the_maximum_is_refused_and_forgotten() -> None:
    door = admission(1, queue_seconds=0.02)
    permit = await take(door)
    with pytest.raises(OverloadedError):
        await take(door)
    assert door.waiting_count == 0
    permit.release()
    await take(door)


async def test_no_request_waits_beyond_the_deadline_of_its_call() -> None:
    clock = Clock()
    door = admission(1, clock=clock)
    await a_turn_of(5, door, clock)
    await take(door)
    wait = AdmissionWait(4.0, clock)
    with pytest.raises(OverloadedError):
        await door.acquire(demand(), wait)
    patient = asyncio.create_task(door.acquire(demand(), AdmissionWait(8.0, clock)))
    await settle()
    assert not patient.done()
    patient.cancel()


async def test_a_call_whose_deadline_passes_in_the_queue_is_told_when_to_come_back() -> None:
    clock = Clock()
    door = admission(1, clock=clock)  # it does not know yet how long turns take
    await take(door)
    async with asyncio.timeout(60):
        with pytest.raises(OverloadedError):
            await door.acquire(demand(), AdmissionWait(0.02, clock))
    assert door.waiting_count == 0


async def test_a_turn_that_its_deadline_would_cut_takes_no_permit() -> None:
    clock = Clock()
    door = admission(2, clock=clock)
    await a_turn_of(4, door, clock)
    running = [await take(door), await take(door)]
    waiting = asked(door)
    await settle()
    with pytest.raises(OverloadedError):
        await door.acquire(demand(), AdmissionWait(3.0, clock))
    waiting.cancel()
    await settle()
    running.pop().release(0)
    with pytest.raises(OverloadedError):
        await door.acquire(demand(), AdmissionWait(3.0, clock))
    await door.acquire(demand(room=10), AdmissionWait(3.0, clock))
    clock.now += 10
    running.pop().release(0)
    await door.acquire(demand(), AdmissionWait(3.0, clock))


async def test_a_caller_who_goes_away_leaves_the_queue() -> None:
    door = admission(1)
    permit = await take(door)
    gone, stays = asked(door), asked(door)
    await settle()
    gone.cancel()
    await settle()
    assert door.waiting_count == 1
    permit.release()
    await stays


async def test_a_permit_that_comes_too_late_for_its_caller_goes_to_the_next() -> None:
    door = admission(1)
    permit = await take(door)
    gone, stays = asked(door), asked(door)
    await settle()
    permit.release()  # to the first, which has not run yet
    gone.cancel()
    await settle()
    assert stays.done()


async def test_who_gives_up_is_told_that_its_message_is_cancelled() -> None:
    door = admission(1)
    permit = await take(door)
    wait = AdmissionWait()
    waiting = asyncio.create_task(door.acquire(demand(), wait))
    await settle()
    wait.cancel()
    with pytest.raises(MessageCancelledError):
        await waiting
    permit.release()
    with pytest.raises(MessageCancelledError):
        await door.acquire(demand(), wait)
    await take(door)


async def test_a_permit_that_no_turn_takes_is_returned() -> None:
    door = admission(1)
    permits = await door.acquire(demand(), AdmissionWait())
    with pytest.raises(ZeroDivisionError), releasing_unused(permits):
        raise ZeroDivisionError
    await take(door)


async def test_a_small_request_does_not_wait_for_a_large_one() -> None:
    door = admission(1)
    permit = await take(door, demand(A))
    many = [asked(door, demand(A)) for _ in range(10)]
    await settle()
    few = asked(door, demand(B))
    await settle()
    permit.release(40)
    await settle()
    assert [few.done(), many[0].done()] == [True, False]
    for task in many:
        task.cancel()


async def order_of(door: Admission, principals: list[Principal], grant_count: int) -> list[str]:
    """Who gets the permits, one after another, where all of these always have a request waiting."""
    permit = await take(door, demand(Principal("first")))
    queued = {principal: [asked(door, demand(principal)) for _ in range(grant_count)] for principal in principals}
    served = []
    await settle()
    for _ in range(grant_count):
        permit.release(40)
        await settle()
        ((principal, permit),) = [
            (principal, task.result()) for principal, tasks in queued.items() for task in tasks if task.done()
        ]
        queued[principal] = [task for task in queued[principal] if not task.done()]
        served.append(principal.name)
    for tasks in queued.values():
        for task in tasks:
            task.cancel()
    return served


async def test_equal_principals_take_turns() -> None:
    served = await order_of(admission(1), [A, B], 20)
    assert 9 <= served.count("a") <= 11


async def test_higher_priorities_go_first_and_low_ones_never_starve() -> None:
    high, normal = Principal("high", priority=Priority.HIGH), Principal("normal")
    low = Principal("low", priority=Priority.LOW)
    served = await order_of(admission(1), [low, normal, high], 84)
    assert served.count("high") == pytest.approx(64, abs=4)
    assert served.count("normal") == pytest.approx(16, abs=3)
    assert served.count("low") == pytest.approx(4, abs=1)


async def test_short_answers_cost_less_than_long_ones_where_both_were_allowed_as_much() -> None:
    door = admission(1)
    for principal, tokens in ((A, 400), (B, 10)):
        for _ in range(2):
            (await take(door, demand(principal, room=400))).release(tokens)
    permit = await take(door, demand(Principal("c")))
    long, short = asked(door, demand(A)), asked(door, demand(B))
    await settle()
    permit.release(40)
    await settle()
    assert [long.done(), short.done()] == [False, True]
    long.cancel()


async def test_choices_count_as_so_many_turns_and_more_than_there_are_places_run_alone() -> None:
    door = admission(4)
    three = await door.acquire(demand(choices=3), AdmissionWait())
    two = asyncio.create_task(door.acquire(demand(choices=2), AdmissionWait()))
    await settle()
    assert (len(three), two.done(), door.waiting_count) == (3, False, 2)
    three[0].release(0)
    await settle()
    assert len(await two) == 2
    nine = asyncio.create_task(door.acquire(demand(choices=9), AdmissionWait()))
    await settle()
    assert not nine.done()
    for permit in (*three, *await two):
        permit.release(0)
    await settle()
    assert len(await nine) == 9


async def test_no_more_begin_than_the_memory_surely_holds() -> None:
    door = admission(None)
    door.measure(Measured(kv_token_count=1000))
    permit = await take(door, demand(prompt=300, room=200))
    large, small = asked(door, demand(prompt=300, room=200)), asked(door)
    await settle()
    assert [large.done(), small.done()] == [False, False], "no request passes one that came before"
    permit.release(200)
    await settle()
    assert [large.done(), small.done()] == [True, True]
    alone = admission(None)
    alone.measure(Measured(kv_token_count=100))
    await take(alone)
    told = admission(2)  # a stated number holds for turns of any size
    told.measure(Measured(kv_token_count=1000))
    await take(told, demand(prompt=300, room=200))
    await take(told, demand(prompt=300, room=200))


async def test_a_piece_of_memory_is_one_turns_however_little_of_it_that_takes() -> None:
    """As where each sequence's KV lies in a stream of its own."""
    door = admission(None)
    door.measure(Measured(kv_token_count=3 * 2048, kv_page_size=2048))
    permits = [await take(door) for _ in range(3)]
    fourth, choices = asked(door), asked(door, demand(choices=2))
    await settle()
    assert not fourth.done()
    permits[0].release(1)
    await settle()
    assert [fourth.done(), choices.done()] == [True, False]
    permits[1].release(1)
    await settle()
    assert not choices.done(), "two choices take two"
    permits[2].release(1)
    await settle()
    assert choices.done()


def test_choices_share_the_pages_that_their_prompt_fills() -> None:
    assert demand(prompt=100, room=40, choices=5).kv_token_counts(16) == (96, 112)
    assert demand(prompt=100, room=40).kv_token_counts(2048) == (0, 2048)


async def test_a_long_prompt_waits_until_another_is_read_and_a_short_one_does_not() -> None:
    door = admission(None)
    door.measure(Measured())
    reading, second = await take(door, demand(prompt=8000)), await take(door, demand(prompt=8000))
    short = asked(door, demand(prompt=20))
    await settle()
    assert short.done()
    third = asked(door, demand(prompt=8000))
    await settle()
    assert not third.done()
    reading.note_first_token()
    second.release()
    await settle()
    assert third.done(), "beside the short one"


async def test_a_burst_waits_and_what_lasts_is_refused_until_it_has_passed() -> None:
    clock = Clock()
    door = admission(2, queue_seconds=1, clock=clock)
    await a_turn_of(0.4, door, clock)
    running = [await take(door), await take(door)]
    first = asked(door)
    await settle()
    assert not first.done(), "a burst"
    for _ in range(4):
        clock.now += 0.4
        running.pop(0).release(40)
        await settle()
        running.append(await first)
        running[-1].note_first_token()
        first = asked(door)
        await settle()
        if first.done():
            break
    assert isinstance(first.exception(), OverloadedError), "for more than a second"
    clock.now += 5
    patient = asked(door)
    await settle()
    assert not patient.done(), "another burst"
    patient.cancel()


async def test_while_there_is_too_much_to_do_prompts_begin_one_after_another() -> None:
    clock = Clock()
    door = admission(2, queue_seconds=1, clock=clock)
    door.measure(Measured())
    await a_turn_of(0.01, door, clock)
    running = [await take(door), await take(door)]
    for _ in range(3):
        late = asked(door)
        await settle()
        late.cancel()
        clock.now += 0.7
    running.pop().release(40)
    refused = asked(door)
    await settle()
    assert isinstance(refused.exception(), OverloadedError), "there is a permit, and a prompt is being read"
    running[0].note_first_token()
    await take(door)


async def test_a_principal_has_its_turns_and_no_more() -> None:
    limited = Principal("limited", Limits(running_turn_count=2))
    door = admission(10)
    permits = [await take(door, demand(limited)) for _ in range(2)]
    with pytest.raises(PrincipalLimitError) as caught:
        await take(door, demand(limited))
    assert caught.value.metadata == {"limit": "running_turn_count"}
    assert caught.value.retry_after
    await take(door, demand(A))
    permits[0].release(40)
    await take(door, demand(limited))
    with pytest.raises(PrincipalLimitError) as caught:
        await take(door, demand(limited, choices=3))
    assert caught.value.retry_after is None, "which no wait would mend"


async def test_tokens_of_a_minute_come_back_with_the_minute_and_what_was_not_said_at_once() -> None:
    clock = Clock()
    limited = Principal("limited", Limits(tokens_per_minute=600))
    door = admission(10, clock=clock)
    permit = await take(door, demand(limited, prompt=100, room=400))
    with pytest.raises(PrincipalLimitError) as caught:
        await take(door, demand(limited, prompt=100, room=100))
    assert caught.value.metadata == {"limit": "tokens_per_minute"}
    assert caught.value.retry_after == pytest.approx(10)
    clock.now += caught.value.retry_after or 0.0
    await take(door, demand(limited, prompt=100, room=100))
    permit.release(100)  # of 400
    await take(door, demand(limited, prompt=100, room=200))
    with pytest.raises(PrincipalLimitError):
        await take(door, demand(limited, prompt=1, room=0))
    clock.now += 3600
    with pytest.raises(PrincipalLimitError) as caught:
        await take(door, demand(limited, prompt=500, room=101))
    assert caught.value.retry_after is None, "never more than a minute's"
    await take(door, demand(limited, prompt=500, room=100))


async def test_a_request_without_a_permit_costs_its_principal_nothing() -> None:
    limited = Principal("limited", Limits(running_turn_count=1, tokens_per_minute=60))
    door = admission(1)
    permit = await take(door, demand(A))
    for _ in range(3):
        waiting = asked(door, demand(limited))
        await settle()
        assert not waiting.done()
        waiting.cancel()
        await settle()
    permit.release(40)
    await take(door, demand(limited))


async def test_a_full_queue_drops_a_request_of_the_principal_with_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "MOST_WAITING", 3)
    door = admission(1)
    await take(door, demand(A))
    many = [asked(door, demand(A)) for _ in range(3)]
    await settle()
    with pytest.raises(OverloadedError):
        await take(door, demand(A))
    other = asked(door, demand(B))
    await settle()
    assert [task.done() for task in many] == [False, False, True]
    assert isinstance(many[2].exception(), OverloadedError)
    for task in (*many, other):
        task.cancel()


async def test_a_drain_lets_no_request_wait() -> None:
    door = admission(1)
    await take(door)
    waiting = asked(door)
    await settle()
    door.close()
    await settle()
    assert isinstance(waiting.exception(), ShuttingDownError)
    with pytest.raises(ShuttingDownError):
        await take(door)


async def test_a_turn_taken_over_is_never_refused_and_counts() -> None:
    door = admission(1)
    await take(door)
    taken = door.admit_taken_over(demand())
    waiting = asked(door)
    await settle()
    assert not waiting.done()
    taken.release(0)
    await settle()
    assert not waiting.done(), "one still runs"
    waiting.cancel()


async def test_processes_that_share_verifiers_have_each_its_part() -> None:
    door = Admission(AdmissionSettings(process_count=4))
    door.measure(Measured(round_count=30))
    assert door.permit_count == 8


def test_as_many_rounds_at_once_as_make_a_step_half_as_long_again_or_20_ms_longer() -> None:
    def costs(fixed: float, row: float) -> StepCurve:
        known = StepCurve()
        known.profile([(count, fixed + row * count) for count in (1, 8, 16, 32, 64, 128, 256)])
        return known

    assert rounds_at_once(costs(0.02, 0.00049)) == 41
    assert rounds_at_once(costs(0.1, 0.001)) == 51
    assert rounds_at_once(costs(0.0, 0.1)) == 32, "a handful is no overload"
    assert rounds_at_once(costs(0.025, 0.0)) == MOST_ROUNDS
    assert rounds_at_once(StepCurve()) == MOST_ROUNDS, "nothing is known"


async def test_a_request_that_must_run_alone_delays_no_other() -> None:
    door = admission(permits=4)
    runs = await take(door)
    alone = asked(door, demand(choices=64))
    await settle()
    small = await take(door)  # there is a permit, though another waits for all of them
    assert not alone.done()
    small.release()
    runs.release()
    (await alone).release()


@pytest.mark.parametrize(
    ("limit", "measured", "wanted", "fit_count"),
    [
        ("turns", Measured(round_count=1), demand(), 1),
        ("kv_tokens", Measured(kv_token_count=1000), demand(room=800), 1),
        ("prompts", Measured(), demand(prompt=1000), 2),
    ],
)
async def test_a_refusal_says_which_limit_it_met_and_is_counted_by_it(
    limit: str, measured: Measured, wanted: Demand, fit_count: int
) -> None:
    clock = Clock()
    door = admission(None, queue_seconds=0.0, clock=clock)
    door.measure(measured)
    await a_turn_of(60.0, door, clock)
    permits = [await take(door, wanted) for _ in range(fit_count)]
    with pytest.raises(OverloadedError, match=r"try again in ") as refused:
        await take(door, wanted)
    assert refused.value.metadata == {"limit": limit}
    assert door.refused == Counter({limit: 1})
    for permit in permits:
        permit.release(1)


async def test_a_turn_that_its_deadline_would_cut_is_refused_for_that() -> None:
    clock = Clock()
    door = admission(1, clock=clock)
    await a_turn_of(60.0, door, clock)
    permit = await take(door)
    waiting = asked(door)
    await settle()
    with pytest.raises(OverloadedError) as refused:
        await door.acquire(demand(), AdmissionWait(5.0, clock))
    assert refused.value.metadata == {"limit": "deadline"}
    permit.release(1)
    (await waiting).release(1)


async def test_limits_are_told_with_what_is_used_of_them_and_what_sets_the_places() -> None:
    door = admission(None)
    assert (door.permits_set_by, door.limits["turns"]) == ("nothing", (0, admission_module.MOST_WAITING))
    door.measure(Measured(round_count=32, kv_token_count=1000))
    permit = await take(door, demand(prompt=20, room=40))
    assert door.permits_set_by == "measured"
    assert door.limits == {
        "turns": (1, 32),
        "kv_tokens": (20 + 40 + 64, 1000),
        "queue": (0, admission_module.MOST_WAITING),
    }
    permit.release(1)
    said = admission(3)
    said.measure(Measured(round_count=32, kv_token_count=1000))
    assert said.permits_set_by == "max_running_turns"
    assert said.limits == {"turns": (0, 3), "queue": (0, admission_module.MOST_WAITING)}
