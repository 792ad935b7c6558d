"""The proof's schedule: every disturbance on its share of the prompts, evenly over dtypes and
temperatures, by seed alone."""

from __future__ import annotations

from collections import Counter

import pytest

from proving.disturbances import ALL, Disturbance, Scope
from proving.pairs import EMBEDDED, PAIRS
from proving.prompts import PromptSource
from proving.schedule import DTYPES, LEAST_PROMPTS, MOST_SESSIONS, TEMPERATURES, Cell, least_share, plan

COUNTS = (LEAST_PROMPTS, 41, 300, 10_000)


def schedule(count: int, seed: int = 0) -> list[Cell]:
    return plan([len(prompt) for prompt in PromptSource(seed).draw(count)], seed, ALL)


def description(cells: list[Cell]) -> list[object]:
    return [
        (
            cell.dtype,
            [d.name for d in cell.disturbances],
            [(w.session_count, [d.name for d in w.disturbances]) for w in cell.waves],
        )
        for cell in cells
    ] + [
        (turn.prompt, turn.temperature, turn.seed, [d.name for d in met]) for cell in cells for turn, met in cell.met()
    ]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("seed", range(3))
def test_every_disturbance_meets_a_twentieth_of_the_prompts(count: int, seed: int) -> None:
    prompts: dict[str, set[int]] = {disturbance.name: set() for disturbance in ALL}
    for cell in schedule(count, seed):
        for turn, met in cell.met():
            for disturbance in met:
                prompts[disturbance.name].add(turn.prompt)
    assert least_share(10_000) == 500
    assert [name for name, met in prompts.items() if len(met) < least_share(count)] == []


@pytest.mark.parametrize("count", COUNTS)
def test_prompts_are_split_evenly_over_dtype_and_temperature(count: int) -> None:
    cells = schedule(count)
    assert sorted(turn.prompt for cell in cells for turn in cell.turns) == list(range(count))
    split = Counter((cell.dtype, turn.temperature) for cell in cells for turn in cell.turns)
    assert len(split) == len(DTYPES) * len(TEMPERATURES)
    assert max(split.values()) - min(split.values()) <= 1


def test_each_pair_has_both_dtypes_and_rough_and_smooth_cells_and_a_tenth_is_the_embedded_pair() -> None:
    cells = schedule(10_000)
    kinds = {(cell.pair, cell.dtype, cell.rough) for cell in cells}
    assert len(kinds) == len(PAIRS) * len(DTYPES) * 2
    assert sum(len(cell.turns) for cell in cells if cell.pair == EMBEDDED) == 1_000
    assert {cell.pair for cell in schedule(LEAST_PROMPTS)} == set(PAIRS)


def test_at_ten_thousand_each_disturbance_meets_both_dtypes_and_both_temperatures() -> None:
    met_under: dict[str, set[tuple[str, float]]] = {disturbance.name: set() for disturbance in ALL}
    for cell in schedule(10_000):
        for turn, met in cell.met():
            for disturbance in met:
                met_under[disturbance.name].add((cell.dtype, turn.temperature))
    assert [name for name, conditions in met_under.items() if len(conditions) < 4] == []


def test_the_schedule_follows_from_the_seed() -> None:
    assert description(schedule(300, seed=1)) == description(schedule(300, seed=1))
    assert description(schedule(300, seed=1)) != description(schedule(300, seed=2))


def test_the_reference_finds_the_same_turns_under_any_disturbance() -> None:
    lengths = [len(prompt) for prompt in PromptSource(0).draw(100)]
    bare, full = plan(lengths, 0, ()), plan(lengths, 0, ALL)
    for one, other in zip(bare, full, strict=True):
        turns = [[(turn.prompt, turn.temperature, turn.seed) for turn in cell.turns] for cell in (one, other)]
        assert turns[0] == turns[1] and one.dtype == other.dtype


@pytest.mark.parametrize("count", COUNTS)
def test_what_excludes_one_another_never_meets(count: int) -> None:
    for cell in schedule(count):
        for wave in cell.waves:
            assert 1 <= wave.session_count <= MOST_SESSIONS
        for _, met in cell.met():
            groups = Counter(disturbance.group for disturbance in met if disturbance.group)
            assert max(groups.values()) == 1
            names = {disturbance.name for disturbance in met}
            assert not any(names & set(disturbance.conflicts) for disturbance in met)
            without_draft = any(disturbance.disables_draft for disturbance in met)
            assert not (without_draft and any(disturbance.needs_draft for disturbance in met))
            assert cell.rough or not any(disturbance.proxied for disturbance in met)


def test_a_disturbance_that_finds_no_room_is_an_error_and_not_left_out() -> None:
    class Shy(Disturbance):
        """A disturbance that no other may accompany."""

        name = "shy"
        unit = "times"
        scope = Scope.WAVE
        conflicts = tuple(disturbance.name for disturbance in ALL)

    with pytest.raises(ValueError, match="'shy' meets 0 prompts, not 2"):
        plan([10] * LEAST_PROMPTS, 0, (*ALL, Shy()))


def test_prompts_follow_from_the_seed_and_have_every_length() -> None:
    prompts = PromptSource(5).draw(2_000)
    assert prompts[:50] == PromptSource(5).draw(50) != PromptSource(6).draw(50)
    lengths = [len(prompt) for prompt in prompts]
    assert min(lengths) == 1 and max(lengths) > 256 and sum(length > 100 for length in lengths) > 100
    beginnings = Counter(tuple(prompt[:32]) for prompt in prompts if len(prompt) > 40)
    assert beginnings.most_common(1)[0][1] > 10  # many share a long prefix
