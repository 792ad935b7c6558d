"""The comparison of reference and served results, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from proving.disturbances import Disturbance
from proving.results import Generated, Reference, ResultStore
from proving.schedule import Cell


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a turn differs: the index of the generated token, and the reference's
    margin there."""

    prompt: int
    position: int
    margin: float
    token: bool
    """True if the token differs, False if only its log-probability does."""


@dataclass(slots=True)
class Row:
    """One line of the table."""

    name: str
    prompt_count: int = 0
    token_count: int = 0
    strike_count: int | None = None
    unit: str = ""
    differences: list[Difference] = field(default_factory=list)

    @property
    def struck(self) -> bool:
        """True if the disturbance happened."""
        return self.strike_count is None or self.strike_count > 0


@dataclass(slots=True)
class Verdict:
    """Results of the finished cells. ``by_condition`` has a row for each dtype and temperature, and
    for each pair."""

    total: Row
    by_condition: list[Row]
    by_disturbance: list[Row]
    complaints: list[str]

    @property
    def proven(self) -> bool:
        """True if there is no difference and no complaint, and every disturbance happened."""
        return not self.total.differences and not self.complaints and all(row.struck for row in self.by_disturbance)


def first_difference(
    prompt: int, turn: int, reference: Reference, served: Generated, *, scored: bool = True
) -> Difference | None:
    """Compare one turn's token ids, and the bits of its log-probabilities if it is ``scored``."""
    tokens = reference.tokens[turn] != served.tokens[turn]
    logprobs = reference.logprobs[turn].view(np.int32) != served.logprobs[turn].view(np.int32)
    differing = (tokens | (logprobs & scored)).nonzero()[0]
    if not differing.size:
        return None
    position = int(differing[0])
    return Difference(prompt, position, float(reference.margins[turn, position]), bool(tokens[position]))


def compare(cells: Sequence[Cell], disturbances: Sequence[Disturbance], store: ResultStore) -> Verdict:
    """Compare all cells. An unfinished cell is a complaint."""
    total = Row("all")
    conditions: dict[str, Row] = {}
    rows = {d.name: Row(d.name, strike_count=0, unit=d.unit) for d in disturbances}
    complaints = []
    for cell in cells:
        reference, answer = store.reference(cell.index), store.served(cell.index)
        if reference is None or answer is None:
            complaints.append(f"cell {cell.index} has not been run")
            continue
        served, account = answer
        complaints += account.complaints
        for name, count in account.strikes.items():
            rows[name].strike_count = (rows[name].strike_count or 0) + count
        for index, (turn, met) in enumerate(cell.met()):
            names = (f"{cell.dtype}, temperature {turn.temperature:g}", cell.pair)
            touched = [total, *(conditions.setdefault(name, Row(name)) for name in names), *(rows[d.name] for d in met)]
            difference = first_difference(turn.prompt, index, reference, served, scored=all(d.scored for d in met))
            for row in touched:
                row.prompt_count += 1
                row.token_count += reference.tokens.shape[1]
                if difference is not None:
                    row.differences.append(difference)
    return Verdict(total, [conditions[name] for name in sorted(conditions)], list(rows.values()), complaints)
