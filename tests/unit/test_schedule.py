"""What goes into a step: neither rounds nor prompts can keep the other out, and no room is left
while anyone waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.engine.schedule import BatchLimits, Want, schedule

LIMITS = BatchLimits(max_step_tokens=64, prefill_chunk=32)
ROUND, PROMPT = Want(8, is_prompt=False), Want(1000, is_prompt=True)


def test_prompts_have_their_share_beside_rounds_that_would_fill_every_step() -> None:
    taken = dict(schedule([*[ROUND] * 20, PROMPT, PROMPT], LIMITS))
    assert taken == {**dict.fromkeys(range(6), 8), 20: 16}, "the oldest rounds, the oldest prompt"


def test_rounds_come_before_prompts_however_old_those_are() -> None:
    assert dict(schedule([PROMPT, PROMPT, PROMPT, ROUND, ROUND], LIMITS)) == {3: 8, 4: 8, 0: 32, 1: 16}


def test_a_short_prompt_is_no_round_and_leaves_what_it_does_not_need() -> None:
    taken = dict(schedule([*[ROUND] * 20, Want(3, is_prompt=True)], LIMITS))
    assert taken == {**dict.fromkeys(range(7), 8), 7: 5, 20: 3}


def test_short_prompts_pass_long_ones_without_starving_the_oldest() -> None:
    taken = dict(schedule([*[ROUND] * 20, PROMPT, PROMPT, Want(8, is_prompt=True)], LIMITS))
    assert (taken[20], taken.get(21), taken[22]) == (8, None, 8)
    assert taken[20] + taken[22] == 16, "the prompts' share"
    shorts = [Want(12, is_prompt=True)] * 9
    assert dict(schedule([PROMPT, *shorts], LIMITS))[0] == 32, "half of the step's tokens"


def test_a_new_prompt_begins_at_once_beside_64_busy_windows_and_they_beside_long_prompts() -> None:
    limits, window, long = BatchLimits(), Want(9, is_prompt=False), Want(8000, is_prompt=True)
    taken = dict(schedule([*[window] * 64, *[long] * 8, Want(20, is_prompt=True)], limits))
    assert taken[72] == 20, "the whole prompt, in the step that begins next"
    assert sum(taken.get(index, 0) for index in range(64)) == limits.max_step_tokens * 3 // 4
    few = dict(schedule([*[long] * 8, *[window] * 16], limits))
    assert all(few[index] == 9 for index in range(8, 24)), "no round waits for a prompt"


WANTS = st.lists(st.builds(Want, st.integers(1, 100), st.booleans()), max_size=40)


@given(wants=WANTS, limits=st.builds(BatchLimits, st.integers(8, 128), st.integers(8, 64)))
def test_a_step_is_full_or_holds_all_it_may_and_each_kind_has_its_share(wants: list[Want], limits: BatchLimits) -> None:
    taken = dict(schedule(wants, limits))
    most = [min(want.token_count, limits.prefill_chunk) for want in wants]
    assert all(0 < count <= most[index] for index, count in taken.items())
    assert sum(taken.values()) == min(limits.max_step_tokens, sum(most))
    for is_prompt, share in ((True, limits.max_step_tokens // 4), (False, limits.max_step_tokens * 3 // 4)):
        kind = [index for index, want in enumerate(wants) if want.is_prompt == is_prompt]
        served = sum(taken.get(index, 0) for index in kind)
        assert served >= min(share, sum(most[index] for index in kind))
        if is_prompt and kind:
            oldest = kind[0]
            assert taken.get(oldest, 0) >= min(most[oldest], served // 2), "the oldest gets on"
            kind = sorted(kind[1:], key=lambda index: wants[index].token_count)
        fully = [taken.get(index, 0) == most[index] for index in kind]
        assert fully == sorted(fully, reverse=True), "the oldest first, the shortest of prompts"
        assert sum(0 < taken.get(index, 0) < most[index] for index in kind) <= 1
