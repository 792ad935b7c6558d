"""What a round's parts take, learnt as rounds go by. All times in seconds. Pure."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.speculation.kept import Kept, NotKeptError, Plain, check_shares, faded, number
from orchestrator.speculation.plan import Overlap, Regime
from orchestrator.speculation.starts import HICCUP, StartAndStep

Floats = NDArray[np.float64]

_WEIGHT = 0.1
"""Of a new observation, once there are enough to have a mean. Where several sessions observe the
same steps, each observation is a share of one: else a single slow step would be the mean."""

LONGEST_WEIGHED = 64
"""Draft tokens of a round beyond which nothing is weighed."""

_OWN = np.arange(LONGEST_WEIGHED + 2, dtype=np.float64)
_TABLE_USES = 16

_TOKEN_COUNT = re.compile("[1-9][0-9]{0,8}")

_KEPT_COUNT = 4.0
"""Observations that a mean from before counts for."""

_DOUBTED_COUNT = 0.5
"""That a mean counts for which may be out of date."""

_SHARED = 1.5
"""Times a session's own tokens in a step from which others' are in it too."""


class Average:
    """A mean that forgets: of the first observations their plain mean, then an exponential one."""

    def __init__(self, initial: float | None = None, ceiling: float = math.inf) -> None:
        """An observation above ``ceiling`` times the mean counts as that."""
        self._ceiling = ceiling
        self._value = initial
        self._count = 0.0

    @property
    def value(self) -> float:
        """The mean; 0 if nothing is known."""
        return 0.0 if self._value is None else self._value

    @property
    def count(self) -> float:
        """Observations, those forgotten too."""
        return self._count

    def state(self) -> list[Plain]:
        """The mean and of how many observations."""
        return [self.value, self._count]

    def take(self, state: Plain) -> None:
        """Go on from a mean. NotKeptError."""
        if not isinstance(state, list) or len(state) != 2:
            raise NotKeptError("a mean is its value and its count")
        self._value, self._count = number(state[0]), min(number(state[1]), _KEPT_COUNT)

    def observe(self, value: float, share: float = 1.0) -> None:
        """One observation, or a ``share`` of one."""
        first, self._count = not self._count, self._count + share
        if self._value is None or first:
            self._value = value
            return
        weight = share * max(_WEIGHT, 1 / self._count)
        counted = min(value, self._ceiling * self._value) if self._value else value
        self._value += weight * (counted - self._value)

    def doubt(self) -> None:
        """It is from long ago: what is observed next weighs more than all that."""
        self._count = min(self._count, _DOUBTED_COUNT)

    def cap(self, most: float) -> None:
        """Something else has shown that it is no more than this."""
        if self._value is not None:
            self._value = min(self._value, most)


class ByRegime(Kept):
    """A mean for each regime; where one has not been seen, that of all."""

    def __init__(self) -> None:
        self._all = Average(ceiling=HICCUP)
        self._each: dict[Regime, Average] = {}

    def at(self, regime: Regime | None = None) -> float:
        """The mean in a regime, or in all."""
        return (self._each.get(regime, self._all) if regime is not None else self._all).value

    @property
    def count(self) -> float:
        """Observations in all."""
        return self._all.count

    def count_at(self, regime: Regime) -> float:
        """Observations in a regime."""
        return self._each[regime].count if regime in self._each else 0.0

    def observe(self, value: float, regime: Regime, share: float = 1.0) -> None:
        """One observation, or a ``share`` of one."""
        self._all.observe(value, share)
        self._mean(regime).observe(value, share)

    def doubt(self, regime: Regime) -> None:
        """What is known of a regime is from long ago."""
        if regime in self._each:
            self._each[regime].doubt()

    def state(self) -> dict[str, Plain]:
        """By the regimes' names."""
        each = {_name(regime): mean.state() for regime, mean in self._each.items()}
        return {"all": self._all.state(), **each}

    def take(self, state: Plain) -> None:
        """Go on from means. NotKeptError."""
        if not isinstance(state, dict) or "all" not in state:
            raise NotKeptError("means are by regime, and one of all")
        for name, mean in state.items():
            known = self._all if name == "all" else self._mean(_regime(name))
            known.take(mean)

    def _mean(self, regime: Regime) -> Average:
        mean = self._each.get(regime)
        if mean is None:
            mean = self._each[regime] = Average(ceiling=HICCUP)
        return mean


def _name(regime: Regime) -> str:
    return f"{regime.way.value if regime.way is not None else 'plain'} {regime.load}"


def _regime(name: str) -> Regime:
    try:
        way, load = name.split()
        return Regime(None if way == "plain" else Overlap(way), int(load))
    except ValueError as error:
        raise NotKeptError(f"no regime is called {name!r}") from error


class StepTimeCurve(Kept):
    """A model's step time by the tokens in the step: profiled at start, kept current by what steps
    really take.

    Between token counts that are known it is linear, and a step that is measured there moves both
    of them, each as near as it is: taken for a step of the larger one, it would make that seem as
    fast.
    """

    def __init__(self, smallest: int = 8) -> None:
        """Steps of fewer tokens than ``smallest`` count as that: they are padded to it."""
        self._smallest = smallest
        self._counts: list[int] = []
        self._times: list[Average] = []

    @property
    def known(self) -> bool:
        """Whether any step has been measured."""
        return bool(self._counts)

    def profile(self, points: Sequence[tuple[int, float]]) -> None:
        """What a verifier measured at its start: token counts, rising, and seconds."""
        if not self._counts:
            self._counts = [count for count, _ in points]
            self._times = [Average(time, ceiling=HICCUP) for _, time in points]

    def observe(self, token_count: int, time: float, share: float = 1.0) -> None:
        """A step of ``token_count`` tokens took ``time``, says one of several with a ``share`` in
        it."""
        index = bisect_left(self._counts, token_count)
        if index < len(self._counts) and self._counts[index] == token_count:
            self._times[index].observe(time, share)
        elif 0 < index < len(self._counts):
            fewer, more = self._counts[index - 1], self._counts[index]
            nearness, ratio = (token_count - fewer) / (more - fewer), time / max(1e-9, self.at(token_count))
            for end, part in ((index - 1, 1 - nearness), (index, nearness)):
                self._times[end].observe(ratio * self._times[end].value, share * part)
        else:
            rounded = max(self._smallest, 1 << (token_count - 1).bit_length())  # 8, 16, 32 ..
            if rounded not in self._counts:
                self._insert(rounded)
            index = self._counts.index(rounded)
            self._times[index].observe(time, share)
        # Else what a slow minute showed of fewer would stand, though no session runs them.
        self.cap(self._counts[index], self._times[index].value)

    def cap(self, token_count: int, most: float) -> None:
        """So many tokens, or more, have been seen to take no longer than ``most``."""
        for count, time in zip(self._counts, self._times, strict=True):
            if count <= token_count and time.value > most:
                time.cap(most)

    def doubt(self) -> None:
        """What is known is from long ago."""
        for time in self._times:
            time.doubt()

    def _insert(self, token_count: int) -> None:
        index = sum(count < token_count for count in self._counts)
        self._counts.insert(index, token_count)
        self._times.insert(index, Average(ceiling=HICCUP))

    def state(self) -> dict[str, Plain]:
        """Means by token count."""
        return {str(count): time.state() for count, time in zip(self._counts, self._times, strict=True)}

    def take(self, state: Plain) -> None:
        """Go on from means. NotKeptError."""
        if not isinstance(state, dict) or not all(_TOKEN_COUNT.fullmatch(count) for count in state):
            raise NotKeptError("step times are by token count")
        self._counts = sorted(map(int, state))
        self._times = [Average(ceiling=HICCUP) for _ in self._counts]
        for count, time in zip(self._counts, self._times, strict=True):
            time.take(state[str(count)])

    def at(self, token_count: float) -> float:
        """Expected seconds of a step; 0 if nothing is known. More tokens never take less."""
        counts = self._counts
        if not counts:
            return 0.0
        times = [*accumulate([time.value for time in self._times], max)]
        index = bisect_left(counts, token_count)
        if index == 0 or len(counts) == 1:
            return times[0]
        index = min(index, len(counts) - 1)  # beyond the last one it goes on as it came
        fewer, more = counts[index - 1], counts[index]
        slope = (times[index] - times[index - 1]) / (more - fewer)
        return times[index - 1] + slope * (token_count - fewer)

    @property
    def longest(self) -> int:
        """Tokens of the longest step that is known; 0 if none is."""
        return self._counts[-1] if self._counts else 0

    def work(self, token_count: int) -> float:
        """Expected seconds of so many tokens in as many steps as they take, none longer than has
        been measured; 0 if nothing is known."""
        if not self._counts:
            return 0.0
        return self.at(min(token_count, self.longest)) * max(1.0, token_count / self.longest)

    def table(self, token_counts: NDArray[np.integer[Any]] | Floats) -> Floats:
        """`at` for many token counts."""
        if not self._counts:
            return np.zeros(len(token_counts))
        times = np.maximum.accumulate([time.value for time in self._times])
        table = np.interp(token_counts, self._counts, times)
        if len(self._counts) > 1:
            slope = (times[-1] - times[-2]) / (self._counts[-1] - self._counts[-2])
            table += slope * np.maximum(0.0, token_counts - self._counts[-1])
        return table


class VerifyCosts(Kept):
    """Of verification: the step, and what surrounds it (network, queue). Steps beside a draft at
    work are kept apart, and those that come after its work: where the two share processors the
    former take longer, and the latter begin with caches that are full of something else, however
    many tokens they have."""

    KEPT = ("alone", "after", "beside", "around", "_own", "_in_step")

    def __init__(self) -> None:
        self.alone = StepTimeCurve()
        self.after = StepTimeCurve()
        self.beside = StepTimeCurve()
        self.around = ByRegime()
        self._own, self._in_step = ByRegime(), ByRegime()
        self._row_multiple = 1
        self._rounds: dict[Regime, tuple[float, ...]] = {}
        self._until_fresh = 0

    def profile(self, points: Sequence[tuple[int, float]], row_multiple: int = 1) -> None:
        """What a verifier says of its steps: (token count, seconds), and what it pads tokens to a
        multiple of."""
        self.alone.profile(points)
        self.after.profile(points)
        self._row_multiple = row_multiple

    def observe(
        self,
        own: int,
        in_step: int,
        forward: float,
        round_trip: float,
        regime: Regime,
        *,
        draft_rested: bool = False,
        share: float = 1.0,
        prompt_beside: bool = False,
    ) -> None:
        """A verification of ``own`` tokens in a step of ``in_step``. ``draft_rested`` if for once
        the draft had nothing to do beside it. ``share``: one by the sessions that observe.
        ``prompt_beside`` if not all tokens were of rounds."""
        curve = self._curves(regime)[0]
        if curve is self.beside and draft_rested:
            curve = self.after
        token_count = -(-max(own, in_step) // self._row_multiple) * self._row_multiple
        curve.observe(token_count, forward, share)
        if curve is self.after:  # cold as it was: that plain ones took longer once would stand while none are run
            self.alone.cap(token_count, curve.at(token_count))
        self.around.observe(max(0.0, round_trip - forward), regime, share)
        if prompt_beside:
            return
        self._own.observe(own, regime, share)
        self._in_step.observe(max(own, in_step), regime, share)

    def observe_steps(self, in_step: int, seconds: float, regime: Regime, share: float = 1.0) -> None:
        """Steps of a run, one token of it and ``in_step`` in all, which took so many seconds each.
        Nothing lies between them."""
        token_count = -(-in_step // self._row_multiple) * self._row_multiple
        self._curves(regime)[0].observe(token_count, seconds, share)
        self._own.observe(1, regime, share)
        self._in_step.observe(in_step, regime, share)

    def doubt(self, regime: Regime) -> None:
        """No round of a regime has been run for long: what is known of such may be out of date."""
        self._curves(regime)[0].doubt()
        self.around.doubt(regime)

    @property
    def observation_count(self) -> float:
        """Of verifications."""
        return self.around.count

    def share(self, regime: Regime) -> float:
        """How many times a session's own tokens a step has. Others weigh as it does: what one finds
        worth its while all do, so its every token costs what as many of theirs cost."""
        own = self._own.at(regime)
        return self._in_step.at(regime) / own if own else 1.0

    def rounds(self, regime: Regime) -> tuple[float, ...]:
        """`at` for 0, 1, 2 .. own tokens, as it was not many observations ago: plans weigh many
        lengths for every round."""
        self._until_fresh -= 1
        if self._until_fresh < 0:
            self._until_fresh = _TABLE_USES
            self._rounds.clear()
        if regime not in self._rounds:
            self._rounds[regime] = tuple(np.maximum(1e-6, self._table(_OWN, regime)).tolist())
        return self._rounds[regime]

    def beside_a_round(self, prompt_length: int) -> float:
        """By how many seconds a prompt of so many tokens makes a verification longer."""
        curve = self.alone if self.alone.known else self.beside
        return curve.at(1 + prompt_length) - curve.at(1)

    def work(self, token_count: int) -> float:
        """Expected seconds of so many tokens, rounds' and prompts' together, at the slower of what
        has been measured; 0 if nothing is known. A curve that ends early says how much longer steps
        take, and not that there are no larger ones."""
        known = sorted((self.alone, self.after, self.beside), key=lambda curve: curve.longest, reverse=True)
        furthest = known[0]
        seconds = furthest.work(token_count)
        if not seconds:
            return 0.0
        within = [(curve, min(token_count, curve.longest)) for curve in known if curve.known]
        return seconds * max(curve.at(count) / furthest.at(count) for curve, count in within)

    def at(self, own: int, regime: Regime) -> float:
        """Expected seconds from asking to the answer."""
        return float(self._table(np.array([float(own)]), regime)[0])

    def curve(self, regime: Regime) -> StepTimeCurve:
        """Of a regime's steps, as far as such have been measured."""
        curves = self._curves(regime)
        return next((curve for curve in curves if curve.known), curves[0])

    def _curves(self, regime: Regime) -> tuple[StepTimeCurve, StepTimeCurve, StepTimeCurve]:
        """A regime's own, and those that are nearest to it where that is not known."""
        if regime.overlaps:
            return self.beside, self.after, self.alone
        return (self.after, self.alone, self.beside) if regime.way else (self.alone, self.after, self.beside)

    def _table(self, own: Floats, regime: Regime) -> Floats:
        share = self.share(regime)
        in_step = own * share
        if share < _SHARED:  # beside others' tokens a stair's edge is anywhere
            in_step = self._padded(in_step)
        return self.curve(regime).table(in_step) + self.around.at(regime)

    def _padded(self, token_counts: Floats) -> Floats:
        return np.ceil(token_counts / self._row_multiple) * self._row_multiple


class DraftCosts(Kept):
    """Of proposals: a step by its rows, those of all branches of all sessions, and what surrounds
    the steps. Steps beside a verification are kept apart, as its own are."""

    KEPT = ("_alone", "_beside", "around")

    def __init__(self) -> None:
        self._alone = StepTimeCurve(smallest=1)
        self._beside = StepTimeCurve(smallest=1)
        self.around = ByRegime()
        self._starts: dict[tuple[bool, int], StartAndStep] = {}
        """By whether verification went on meanwhile, and the rows' bits."""

    def observe(
        self,
        rows: int,
        steps: int,
        forward: float,
        round_trip: float,
        regime: Regime,
        *,
        beside: bool = False,
        share: float = 1.0,
    ) -> None:
        """A request whose answer took ``steps`` forwards of ``rows``; ``beside`` if verification
        went on meanwhile. ``share``: one by the sessions that observe."""
        curve, steps, rows = self._beside if beside else self._alone, max(1, steps), max(1, rows)
        line = self._starts.setdefault((beside, rows.bit_length()), StartAndStep())
        line.observe(steps, forward, share)
        start = min(forward, line.start)
        curve.observe(rows, (forward - start) / steps, share)
        self.around.observe(max(0.0, round_trip - forward) + start, regime, share)

    def doubt(self, regime: Regime) -> None:
        """As `VerifyCosts.doubt`."""
        (self._beside if regime.overlaps else self._alone).doubt()
        self.around.doubt(regime)

    @property
    def known(self) -> bool:
        """Whether a request has been answered yet."""
        return self._alone.known or self._beside.known

    @property
    def alone(self) -> StepTimeCurve:
        """A step while a round waits for it."""
        return self._alone if self._alone.known else self._beside

    @property
    def beside(self) -> StepTimeCurve:
        """A step while the target verifies."""
        return self._beside if self._beside.known else self._alone

    def at(self, steps: int, rows: int, regime: Regime) -> float:
        """Expected seconds from asking to the answer that a round waits for."""
        return self.around.at(regime) + steps * self.alone.at(rows)


class HitRates(Kept):
    """The odds that one of a request's first n branches comes true, learnt from which one it was.

    Of a request of n branches that all miss it is unknown whether the n+1st had come true. So what
    is learnt is, for each rank, how often it comes true where it was asked for and those before it
    do not (the estimate of Kaplan and Meier)::

        odds(n) = 1 - (1 - h_0) (1 - h_1) .. (1 - h_(n-1))
    """

    KEPT = ("_hits", "_asked")

    def __init__(self) -> None:
        self._hits = [_GUESSED_COUNT * (_GUESSED_LATER if rank else _GUESSED_FIRST) for rank in range(_MOST_BRANCHES)]
        self._asked = [_GUESSED_COUNT] * _MOST_BRANCHES
        """How often a rank was asked for and none before it came true."""

    def observe(self, branches: int, rank: int | None) -> None:
        """Of so many branches that of ``rank`` came true, or none."""
        for each in range(min(branches if rank is None else rank + 1, _MOST_BRANCHES)):
            self._asked[each] = _HITS_KEEP * self._asked[each] + 1
            self._hits[each] = _HITS_KEEP * self._hits[each] + (each == rank)

    def take(self, state: Plain) -> None:
        """Go on from counts. NotKeptError."""
        super().take(state)
        check_shares(self._hits, self._asked)
        if not all(self._asked):
            raise NotKeptError("of every rank there is at least a guess")
        for rank, asked in enumerate(self._asked):
            self._hits[rank], self._asked[rank] = faded([self._hits[rank], asked], asked, _KEPT_HITS)

    def at(self, branches: int) -> float:
        """The odds with so many branches."""
        missed = 1.0
        for hits, asked in zip(self._hits[:branches], self._asked[:branches], strict=True):
            missed *= 1 - hits / asked
        return 1 - missed


_MOST_BRANCHES = 16
_HITS_KEEP = 0.995
_GUESSED_FIRST, _GUESSED_LATER, _GUESSED_COUNT = 0.5, 0.1, 2.0
"""Odds of the first branch and of each other one where those before it do not come true, and how
many requests this guess is worth."""
_KEPT_HITS = 20.0
"""Requests that what was learnt before counts for."""
