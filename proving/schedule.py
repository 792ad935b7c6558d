"""The schedule of prompts and disturbances. The seed alone decides it, before anything runs.

Prompts are split evenly over dtype and temperature. They are dealt into cells (one set of service
processes) and waves (a batch of prompts inside a cell). Every disturbance meets at least a
twentieth of the prompts.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from proving.disturbances import Disturbance, Scope
from proving.pairs import EMBEDDED, RANDOM_WEIGHTS

DTYPES = ("float32", "bfloat16")
TEMPERATURES = (0.0, 0.8)
LEAST_PROMPTS = 40
MOST_SESSIONS = 16
_CELL_SIZE = 250
_WAVE_SIZE = 50
_PAIR_PERIOD = 22
"""Period of cells, of which the first of each dtype serve the embedded pair. It is not a multiple
of four, so both dtypes meet rough and smooth cells. The smallest runs have four cells and serve the
embedded pair in two."""
EXHAUSTIVE_GROUPS = ("prefill", "pages", "draft length")
"""Groups of which every cell or turn has one disturbance."""


@dataclass(slots=True)
class Turn:
    """One prompt with its sampling, its sending, and its disturbances."""

    prompt: int
    temperature: float
    seed: int
    disturbances: list[Disturbance] = field(default_factory=list)


@dataclass(slots=True)
class Wave:
    """Prompts that run together."""

    turns: list[Turn]
    session_count: int = 1
    disturbances: list[Disturbance] = field(default_factory=list)


@dataclass(slots=True)
class Cell:
    """Prompts that share one set of service processes. A ``rough`` cell has proxies."""

    index: int
    pair: str
    dtype: str
    rough: bool
    waves: list[Wave]
    disturbances: list[Disturbance] = field(default_factory=list)

    @property
    def turns(self) -> list[Turn]:
        """Return the turns of all waves, in order."""
        return [turn for wave in self.waves for turn in wave.turns]

    def met(self) -> Iterator[tuple[Turn, list[Disturbance]]]:
        """Return each turn with all its disturbances."""
        for wave in self.waves:
            for turn in wave.turns:
                yield turn, [*self.disturbances, *wave.disturbances, *turn.disturbances]


def least_share(prompt_count: int) -> int:
    """Return the number of prompts that each disturbance must meet: a twentieth, rounded up."""
    return -(-prompt_count // 20)


def plan(prompt_lengths: Sequence[int], seed: int, disturbances: Sequence[Disturbance]) -> list[Cell]:
    """Return the cells, in the order they run."""
    planner = _Planner(prompt_lengths, seed, disturbances)
    planner.deal()
    planner.disturb_cells()
    planner.disturb_waves()
    planner.disturb_turns()
    return planner.cells


@dataclass(frozen=True, slots=True)
class _Place:
    """A turn and its place: ``index`` counts within the cell."""

    index: int
    cell: Cell
    wave: Wave
    turn: Turn

    def met(self) -> list[Disturbance]:
        return [*self.cell.disturbances, *self.wave.disturbances, *self.turn.disturbances]


class _Planner:
    def __init__(self, prompt_lengths: Sequence[int], seed: int, disturbances: Sequence[Disturbance]) -> None:
        self.cells: list[Cell] = []
        self._lengths = prompt_lengths
        self._rng = random.Random(f"schedule {seed}")
        self._share = least_share(len(prompt_lengths))
        self._by_scope = {scope: [d for d in disturbances if d.scope is scope] for scope in Scope}

    def deal(self) -> None:
        """Deal prompts to at least four cells, and to waves."""
        count = len(self._lengths)
        cell_count = 4 * max(1, -(-count // (4 * _CELL_SIZE)))
        for index in range(cell_count):
            dtype = index % len(DTYPES)
            mine = range(count)[dtype :: len(DTYPES)]
            place, places = index // len(DTYPES), cell_count // len(DTYPES)
            prompts = mine[len(mine) * place // places : len(mine) * (place + 1) // places]
            turns = [
                Turn(prompt, TEMPERATURES[prompt // len(DTYPES) % len(TEMPERATURES)], self._rng.getrandbits(62))
                for prompt in prompts
            ]
            wave_count = max(2, round(len(turns) / _WAVE_SIZE))
            bounds = [len(turns) * w // wave_count for w in range(wave_count + 1)]
            waves = [Wave(turns[start:end]) for start, end in itertools.pairwise(bounds)]
            pair = EMBEDDED if index % (_PAIR_PERIOD if cell_count > 4 else 4) < len(DTYPES) else RANDOM_WEIGHTS
            self.cells.append(Cell(index, pair, DTYPES[dtype], index % 4 in (1, 2), waves))

    def disturb_cells(self) -> None:
        """Give one disturbance of each setup group to every cell, and the others to the cells that
        are due."""
        everywhere = [d for d in self._by_scope[Scope.CELL] if d.group in EXHAUSTIVE_GROUPS]
        for group in EXHAUSTIVE_GROUPS:
            options = [d for d in everywhere if d.group == group]
            for cell in self.cells if options else ():
                place = cell.index // len(DTYPES) + cell.index % len(DTYPES) * -(-len(options) // len(DTYPES))
                cell.disturbances.append(options[place % len(options)])
        for disturbance in self._by_scope[Scope.CELL]:
            if disturbance not in everywhere:
                self._place_in_cells(disturbance)

    def _place_in_cells(self, disturbance: Disturbance) -> None:
        """Place a disturbance in the cells with the fewest disturbances, alternating the dtypes,
        until it meets its share."""
        met, used = 0, Counter[str]()
        while met < self._due(disturbance):
            cells = [cell for cell in self.cells if _fits(disturbance, cell, cell.disturbances)]
            if not cells:
                break
            cell = min(
                cells, key=lambda c: (used[c.dtype], len(c.disturbances), c.rough != disturbance.proxied, c.index)
            )
            cell.disturbances.append(disturbance)
            used[cell.dtype] += 1
            met += len(cell.turns)
        self._check(disturbance, met)

    def disturb_waves(self) -> None:
        """Place each wave disturbance in its number of waves, drawn at random. Those that meet
        every wave come last, those that decide draft lengths first."""
        for disturbance in sorted(self._by_scope[Scope.WAVE], key=_wave_order):
            met = 0
            for cell, wave in self._rng.sample(waves := self._waves(), len(waves)):
                present = [*cell.disturbances, *wave.disturbances]
                if (met < self._due(disturbance) or disturbance.everywhere) and _fits(disturbance, cell, present):
                    wave.disturbances.append(disturbance)
                    met += len(wave.turns)
            self._check(disturbance, met)
        for cell, wave in self._waves():
            wave.session_count = most = min(MOST_SESSIONS, len(wave.turns))
            for disturbance in (*wave.disturbances, *cell.disturbances):
                wave.session_count = disturbance.session_count(wave.session_count, most, self._rng)

    def disturb_turns(self) -> None:
        """Give a draft length to every turn without one, by weight, and the others to the turns
        they rank first."""
        places = [
            _Place(index, cell, wave, turn)
            for cell in self.cells
            for index, (wave, turn) in enumerate((wave, turn) for wave in cell.waves for turn in wave.turns)
        ]
        self._rng.shuffle(places)
        options = [d for d in self._by_scope[Scope.TURN] if d.group in EXHAUSTIVE_GROUPS]
        used = Counter[Disturbance]()
        for place in places:
            fitting = [d for d in options if _fits(d, place.cell, place.met())]
            if fitting:
                place.turn.disturbances.append(chosen := min(fitting, key=lambda d: used[d] / d.weight))
                used[chosen] += 1
        for disturbance in options:
            self._check(disturbance, used[disturbance])
        for disturbance in self._by_scope[Scope.TURN]:
            if disturbance not in options:
                self._place_in_turns(disturbance, places)

    def _place_in_turns(self, disturbance: Disturbance, places: Sequence[_Place]) -> None:
        met = 0
        for place in sorted(places, key=lambda p: disturbance.rank(p.index, self._lengths[p.turn.prompt])):
            if met < self._due(disturbance) and _fits(disturbance, place.cell, place.met()):
                place.turn.disturbances.append(disturbance)
                met += 1
        self._check(disturbance, met)

    def _waves(self) -> list[tuple[Cell, Wave]]:
        return [(cell, wave) for cell in self.cells for wave in cell.waves]

    def _due(self, disturbance: Disturbance) -> int:
        return self._share * disturbance.portions

    def _check(self, disturbance: Disturbance, met: int) -> None:
        if met < self._share:
            raise ValueError(f"{disturbance.name!r} meets {met} prompts, not {self._share}: more prompts are needed")


def _wave_order(disturbance: Disturbance) -> tuple[bool, bool, int]:
    return disturbance.everywhere, disturbance.group not in EXHAUSTIVE_GROUPS, -len(disturbance.conflicts)


def _fits(disturbance: Disturbance, cell: Cell, present: Sequence[Disturbance]) -> bool:
    if disturbance.proxied and not cell.rough:
        return False
    return not any(_excludes(disturbance, other) or _excludes(other, disturbance) for other in present)


def _excludes(one: Disturbance, other: Disturbance) -> bool:
    if one is other or (one.group is not None and one.group == other.group):
        return True
    return other.name in one.conflicts or (one.needs_draft and other.disables_draft)
