"""Coupled sampling: draft and target add the same noise to their own logits and take the argmax.

A draft token is accepted exactly if it equals the target's own choice, so the text never depends on the draft.
Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative decoding" (2024).

No row is searched token by token. A block's largest logit and its first arrival bound what any of its tokens can reach, and
the tokens that arrive first are known without looking further: blocks that cannot beat the best of them stay closed. Nor is
any row sorted for a top-p: its winner is looked for among all tokens, and is thrown out, with all that are no likelier, if
those above it have the mass already. (Rejection instead of sorting is FlashInfer's idea, Ye et al. 2025; here nothing is drawn
again: the next best under the same noise takes its place.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from slipstream.sampling.blocks import BlockedLogits, Floats32, sum_of_blocks, tokens_of
from slipstream.sampling.noise import BLOCK, Floats, Ints, all_arrivals, arrivals, beginnings
from slipstream.sampling.row import Choice

LARGEST_OPEN = 8192
"""Tokens of a vocabulary that is looked at whole, in few rows: for so few it takes less time than finding out where to look."""
_MOST_OPEN_ROWS = 2

SLACK = 0.1
"""In scores: blocks that may come so near to the best are opened too, so that a near tie is seen to be one."""
_CANDIDATE_SLACK = 3.0
"""The same where a draft wants to know what else may be chosen: in one row of twenty it is something further off."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What of a row may be drawn, as in `slipstream.sampling.rule.SamplingRule`: 1, 0, 1 and 0 keep it as it is."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def choose_coupled(
    logits: BlockedLogits,
    cuts: Sequence[Cut],
    seeds: Sequence[int],
    positions: Sequence[int],
    candidate_count: int | None = None,
) -> list[Choice]:
    """``argmax_v(logits[v] / temperature - log(arrival(seed, position, v)))`` for each row, over the tokens that its cut keeps.

    The largest logit of each row is finite. With a ``candidate_count``, 0 included, the choices are a draft's: with
    log-probabilities, and that many candidates by their perturbed logits.
    """
    race = _Race(logits, cuts, seeds, positions, _CANDIDATE_SLACK if candidate_count else SLACK)
    winners = race.run(range(len(cuts)))
    unsure = [row for row, cut in enumerate(cuts) if cut.top_p < 1 and winners[row].value < race.largest[row]]
    if unsure:
        _reject(race, winners, _Likelier(logits), cuts, unsure)
    leads = [winner.score - winner.next_score for winner in winners]
    if candidate_count is None:  # what is further off may have been looked at or not, as the other rows had it
        return [Choice(winner.token, min(lead, SLACK)) for winner, lead in zip(winners, leads, strict=True)]
    choices = [Choice(winner.token, lead) for winner, lead in zip(winners, leads, strict=True)]
    masses = _log_masses(logits, cuts, race.lowest)
    for row, (choice, cut, mass) in enumerate(zip(choices, cuts, masses, strict=True)):
        choice.logprob = winners[row].value / cut.temperature - mass
        choice.candidates = race.candidates(row, candidate_count)
    return choices


def _reject(race: _Race, winners: list[_Winner], likelier: _Likelier, cuts: Sequence[Cut], rows: Sequence[int]) -> None:
    """Put others in the place of winners that their rows' top-p does not keep."""
    for row in rows:
        cut = cuts[row]
        likelier.look_at(row, cut.temperature, float(race.largest[row]), float(race.top_k_floors[row]))
        while likelier.mass(winners[row].value) >= cut.top_p:
            race.exclude(row, winners[row].value)
            (winners[row],) = race.run([row])


@dataclass(frozen=True, slots=True)
class _Seen:
    """Some rows' tokens ``[n, width]``: their ``values`` are logits, their ``scores`` these over the temperature plus noise.

    ``rows[i]`` says whose they are; ascending.
    """

    rows: Ints
    tokens: Ints
    values: Floats32
    scores: Floats


@dataclass(frozen=True, slots=True)
class _Winner:
    """A row's best token, and the best score of another."""

    token: int
    value: float
    score: float
    next_score: float

    def against(self, other: _Winner) -> _Winner:
        """The better of two of one row."""
        better, worse = (self, other) if self.score >= other.score else (other, self)
        return _Winner(better.token, better.value, better.score, max(better.next_score, worse.score))


class _Race:
    """The tokens of each row against each other."""

    def __init__(
        self,
        logits: BlockedLogits,
        cuts: Sequence[Cut],
        seeds: Sequence[int],
        positions: Sequence[int],
        slack: float,
    ) -> None:
        temperatures = np.array([[cut.temperature] for cut in cuts], dtype=np.float32)
        if logits.vocabulary_size <= LARGEST_OPEN and len(cuts) <= _MOST_OPEN_ROWS:
            self._scores: _Scores = _AllScores(logits, temperatures, seeds, positions)
        else:
            self._scores = _FewScores(logits, temperatures, seeds, positions, slack)
        self.largest = logits.maxima.max(axis=1)
        self.top_k_floors = _top_k_floors(logits, [cut.top_k for cut in cuts])
        with np.errstate(divide="ignore"):
            depths = [cut.temperature for cut in cuts] * np.log([cut.min_p for cut in cuts])
        self.lowest: Floats = np.maximum(self.top_k_floors, self.largest + depths)
        """Of each row: lower logits are cut off."""
        self._seen: dict[int, list[_Seen]] = {}

    def run(self, rows: Sequence[int]) -> list[_Winner]:
        """Each row's winner."""
        at = np.array(rows)
        groups = self._scores.look(at, self.lowest[at])
        self._seen.update(dict.fromkeys(rows, groups))
        winners: dict[int, _Winner] = {}
        for seen in groups:
            for row, winner in zip(seen.rows.tolist(), _best(seen), strict=True):
                winners[row] = winners[row].against(winner) if row in winners else winner
        return [winners[row] for row in rows]

    def exclude(self, row: int, value: float) -> None:
        """Throw out the tokens of a row with this logit or a lower one."""
        self.lowest[row] = max(float(self.lowest[row]), math.nextafter(value, math.inf))

    def candidates(self, row: int, count: int) -> tuple[tuple[int, float], ...]:
        """The best tokens of a row that were looked at and their scores, best first."""
        own = [(seen.rows == row, seen) for seen in self._seen[row]]
        scores = np.concatenate([seen.scores[mine].reshape(-1) for mine, seen in own])
        tokens = np.concatenate([seen.tokens[mine].reshape(-1) for mine, seen in own])
        order = np.argsort(-scores)[: min(count, int(np.isfinite(scores).sum()))]
        return tuple(zip(tokens[order].tolist(), scores[order].tolist(), strict=True))


class _Scores(Protocol):
    """Where the scores of rows' tokens come from."""

    def look(self, rows: Ints, lowest: Floats) -> list[_Seen]:
        """The tokens of rows among which each row's best must be, and the next best; those below ``lowest`` have none."""
        ...


class _AllScores:
    """Every token's."""

    def __init__(
        self, logits: BlockedLogits, temperatures: Floats32, seeds: Sequence[int], positions: Sequence[int]
    ) -> None:
        self._values = logits.logits.float().cpu().numpy()
        self._scores = -np.log(all_arrivals(seeds, positions, logits.vocabulary_size))
        self._scores += self._values / temperatures
        self._tokens = np.broadcast_to(np.arange(logits.vocabulary_size), self._values.shape)

    def look(self, rows: Ints, lowest: Floats) -> list[_Seen]:
        values = self._values[rows]
        scores = self._scores[rows]
        scores[values < lowest[:, None]] = -np.inf
        return [_Seen(rows, self._tokens[rows], values, scores)]


class _FewScores:
    """Of those that come first in their blocks, and of the others in blocks where they may win."""

    def __init__(
        self,
        logits: BlockedLogits,
        temperatures: Floats32,
        seeds: Sequence[int],
        positions: Sequence[int],
        slack: float,
    ) -> None:
        self._logits, self._temperatures, self._slack = logits, temperatures, slack
        self._seeds, self._positions = seeds, positions
        self._beginnings = beginnings(seeds, positions, logits.block_count)
        self._first_tokens = np.arange(logits.block_count) * BLOCK + self._beginnings.place
        self._first_values = logits.tokens(self._first_tokens)
        self._first_scores = -np.log(self._beginnings.first)
        self._first_scores += self._first_values / temperatures
        self._bounds = logits.maxima / temperatures - np.log(self._beginnings.second)
        """What a block's other tokens reach at most."""

    def look(self, rows: Ints, lowest: Floats) -> list[_Seen]:
        firsts = _Seen(rows, self._first_tokens[rows], self._first_values[rows], self._first_scores[rows])
        bounds = self._bounds[rows]
        if lowest.max() > -np.inf:
            firsts.scores[firsts.values < lowest[:, None]] = -np.inf
            bounds[self._logits.maxima[rows] < lowest[:, None]] = -np.inf
        known = firsts.scores.max(axis=1)
        # The block that can reach most, and then those that still can reach more than the best found there: where one token is
        # by far the likeliest the first alone will do.
        every, most = np.arange(len(rows)), bounds.argmax(axis=1)
        promising = (bounds[every, most] > known - self._slack).nonzero()[0]
        before = self._open(rows[promising], most[promising], lowest[promising])
        known[promising] = np.maximum(known[promising], before.scores.max(axis=1, initial=-np.inf))
        bounds[promising, most[promising]] = -np.inf
        opened, blocks = (bounds > known[:, None] - self._slack).nonzero()
        return [firsts, before, self._open(rows[opened], blocks, lowest[opened])]

    def _open(self, rows: Ints, blocks: Ints, lowest: Floats) -> _Seen:
        """The tokens of some blocks, but for those that come first."""
        if not len(rows):
            return _Seen(rows, np.zeros((0, BLOCK), np.int64), np.zeros((0, BLOCK), np.float32), np.zeros((0, BLOCK)))
        seeds, positions = [self._seeds[row] for row in rows], [self._positions[row] for row in rows]
        began = self._beginnings[rows, blocks]
        values = self._logits.blocks(rows, blocks)
        scores: Floats = -np.log(arrivals(seeds, positions, blocks.tolist(), began))
        scores += values / self._temperatures[rows]
        scores[values < lowest[:, None]] = -np.inf
        scores[np.arange(len(rows)), began.place] = -np.inf
        return _Seen(rows, tokens_of(blocks), values, scores)


def _best(seen: _Seen) -> list[_Winner]:
    """Of each of ``seen.rows``, as they come, among these tokens."""
    every = np.arange(len(seen.rows))
    places = seen.scores.argmax(axis=1) if len(every) else every
    top = seen.scores[every, places]
    seen.scores[every, places] = -np.inf
    second = seen.scores.max(axis=1, initial=-np.inf)
    seen.scores[every, places] = top
    found = (seen.tokens[every, places], seen.values[every, places], top, second)
    return [_Winner(*winner) for winner in zip(*(each.tolist() for each in found), strict=True)]


def _top_k_floors(logits: BlockedLogits, counts: Sequence[int]) -> Floats32:
    """Each row's k-th largest logit, -inf where k is 0.

    It is in one of the k blocks with the largest maxima: at least k of their tokens are no smaller than the last of these.
    """
    floors = np.full(len(counts), -np.inf, dtype=np.float32)
    for row, count in enumerate(counts):
        if not 0 < count < logits.vocabulary_size:
            continue
        blocks = np.arange(logits.block_count)
        if count < logits.block_count:
            blocks = np.argpartition(-logits.maxima[row], count - 1)[:count]
        values = logits.blocks(np.full(len(blocks), row), blocks).reshape(-1)
        floors[row] = -np.partition(-values, count - 1)[count - 1]
    return floors


class _Likelier:
    """How much of a row's probability is above a logit. Looks at one row at a time, in memory that stays in the cache."""

    def __init__(self, logits: BlockedLogits) -> None:
        self._logits = logits.logits
        self._values, self._weights, self._above = (
            torch.empty(logits.vocabulary_size, device=logits.logits.device) for _ in range(3)
        )  # what is above as numbers: torch takes five times as long over truth values
        self._total = 0.0

    def look_at(self, row: int, temperature: float, largest: float, floor: float) -> None:
        """A row, its largest logit, and the lowest that its top-k leaves."""
        self._values.copy_(self._logits[row])
        torch.sub(self._values, largest, out=self._weights).mul_(1 / temperature).exp_()
        if floor > -math.inf:
            self._weights.mul_(torch.ge(self._values, floor, out=self._above))
        self._total = sum_of_blocks(self._weights)

    def mass(self, value: float) -> float:
        """The probability of the tokens with larger logits."""
        torch.gt(self._values, value, out=self._above)
        return sum_of_blocks(self._above.mul_(self._weights)) / self._total


def _log_masses(logits: BlockedLogits, cuts: Sequence[Cut], lowest: Floats) -> list[float]:
    """The logarithm of what each row's kept tokens weigh together, near enough for a draft's confidence."""
    values = logits.logits.float()
    if (lowest > -np.inf).any():
        values = values.masked_fill(values < torch.from_numpy(lowest[:, None]).to(values), -torch.inf)
    values = values / torch.tensor([[cut.temperature] for cut in cuts], device=values.device)
    masses: list[float] = values.logsumexp(dim=-1).tolist()
    return masses


def choose_likeliest(logits: BlockedLogits, candidate_count: int | None = None) -> list[Choice]:
    """Each row's largest logit, the lower token id among equals.

    With a ``candidate_count``, 0 included, the choices are a draft's: with log-probabilities, and that many candidates.
    """
    rows = np.arange(len(logits.maxima))
    blocks = logits.maxima.argmax(axis=1)
    values = logits.blocks(rows, blocks)
    places = values.argmax(axis=1)
    best = values[rows, places]
    values[rows, places] = -np.inf
    others = logits.maxima.copy()
    others[rows, blocks] = values.max(axis=1)
    margins = best - others.max(axis=1)
    tokens = blocks * BLOCK + places
    choices = [Choice(token, margin) for token, margin in zip(tokens.tolist(), margins.tolist(), strict=True)]
    if candidate_count is not None:
        masses = logits.logits.float().logsumexp(dim=-1).tolist()
        for row, (choice, value, mass) in enumerate(zip(choices, best.tolist(), masses, strict=True)):
            choice.logprob = value - mass
            choice.candidates = _likeliest(logits, row, candidate_count)
    return choices


def _likeliest(logits: BlockedLogits, row: int, count: int) -> tuple[tuple[int, float], ...]:
    """A row's largest logits, of equals the lower token ids: each is in one of as many blocks."""
    if not count:
        return ()
    blocks = np.sort(np.argsort(-logits.maxima[row], kind="stable")[:count])
    values = logits.blocks(np.full(len(blocks), row), blocks).reshape(-1)
    order = np.argsort(-values, kind="stable")[: min(count, logits.vocabulary_size)]
    return tuple(zip(tokens_of(blocks).reshape(-1)[order].tolist(), values[order].tolist(), strict=True))


def accepted_count(proposal: Sequence[int], choices: Sequence[int]) -> int:
    """Length of the longest prefix of ``proposal`` that equals the target's own choices."""
    count = 0
    while count < len(proposal) and proposal[count] == choices[count]:
        count += 1
    return count
