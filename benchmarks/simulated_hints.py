"""A seeded simulation of sessions on one verifier, with a draft that sends hints. It takes no real
time.

Matching, calibration, selection, holding and the draft's horizon are the modules that the services
use. Only texts, forwards and the network are made up.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.simulated_time import Clock, Processor
from slipstream.engine.hinting.calibration import Calibration
from slipstream.engine.hinting.hints import MOST_TOKENS, Candidate, Hint, HintBox, Maker, Source
from slipstream.engine.hinting.holding import Habit, Hold, divide
from slipstream.engine.hinting.horizon import Horizon, Line, Probes, least_survival
from slipstream.engine.hinting.selection import Offer, best_prefix, select
from slipstream.step_times import StepTimes

_PROMPT = 10
_PROFILED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Times are in seconds."""

    sessions: int = 1
    round_trip: float = 0.0
    token_count: int = 800
    """Tokens of a session."""
    is_hinted: bool = True
    acceptance: float = 0.8
    """Odds of the draft's likeliest token."""
    stated: float | None = None
    """Odds that the draft states; None for the true ones."""
    right_from: int = 0
    """Position from which the draft is right at all: before, all its tokens are wrong."""
    spread: float = 0.0
    """Odds are ``acceptance`` plus or minus this, and the draft knows which."""
    second_share: float = 0.6
    """Share of the draft's errors in which its second choice is right."""
    has_branches: bool = True
    holds: bool | None = None
    """True if runs wait for hints; None: where processors are shared, since only there it pays."""
    verify: float = 0.025
    verify_row: float = 0.0002
    row_multiple: int = 1
    row_limit: int = 512
    draft: float = 0.003
    draft_row: float = 0.00005
    """Seconds of each row of a draft's step after the first."""
    is_shared: bool = False
    """True if draft and verifier share their processors."""
    jitter: float = 0.05
    """Steps take up to this share longer or shorter."""
    slow_share: float = 0.0
    """Share of the verifier's steps that other work makes five times as long."""
    frozen_at: float = math.inf
    """Time from which the draft stands still."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a simulation."""

    tokens_per_second: float
    verified: int
    accepted: int
    held_seconds: float
    token_times: list[list[float]]
    """When each token of each session was chosen."""


class Text:
    """The tokens that the target chooses in a session, and what the draft says of them."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        draw = random.Random(seed)
        self.tokens: list[int] = []
        self._said: list[tuple[bool, bool, float]] = []
        for position in range(_PROMPT + scenario.token_count + 2 * MOST_TOKENS):
            odds = min(1.0, max(0.0, scenario.acceptance + scenario.spread * draw.choice([-1, 1])))
            first, second = draw.random() < odds, draw.random() < scenario.second_share
            is_right = position >= _PROMPT + scenario.right_from
            self.tokens.append(draw.randrange(50_000))
            said = odds if scenario.stated is None else scenario.stated
            self._said.append((first and is_right, second and is_right, said))
        self._second_share = scenario.second_share

    def choices(self, length: int, path: Sequence[int]) -> list[tuple[int, float]]:
        """Return the draft's two likeliest tokens after ``length`` right tokens and a path, with
        their odds. After a wrong path all are wrong."""
        position = length + len(path)
        first, second, odds = self._said[position]
        follows = list(path) == self.tokens[length:position]
        right, wrong = self.tokens[position], [50_000 + 2 * position, 50_001 + 2 * position]
        likeliest = right if follows and first else wrong[0]
        other = right if follows and second and not first else wrong[1]
        return [(likeliest, odds), (other, (1 - odds) * self._second_share)]


class Run:
    """A session at the verifier."""

    def __init__(self, text: Text, calibration: Calibration, habit: Habit) -> None:
        self.text = text
        self.length = _PROMPT
        self.box = HintBox(calibration.judge)
        self.hold = Hold(habit)
        self.times: list[float] = []
        self.ready_since = 0.0

    @property
    def chosen(self) -> list[int]:
        """All tokens chosen so far."""
        return self.text.tokens[: self.length]


class Simulation:
    """One verifier and one draft."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._draw = random.Random(scenario.seed)
        self.clock = Clock()
        self._processor = Processor(self.clock)
        profile = [(rows, scenario.verify + rows * scenario.verify_row) for rows in _PROFILED]
        self.times = StepTimes(profile, scenario.row_multiple)
        self.calibration = Calibration()
        habit = Habit()
        texts = [Text(scenario, 1000 * scenario.seed + index) for index in range(scenario.sessions)]
        self.runs = [Run(text, self.calibration, habit) for text in texts]
        self._draft = Draft(self, scenario, self._processor if scenario.is_shared else Processor(self.clock))
        self._maker: Maker = (Source.DRAFT, 1)
        self._is_busy = False
        self._verified = self._accepted = 0
        self._held = 0.0

    def run(self) -> Outcome:
        """Simulate until the first session is complete."""
        self.clock.after(0, self._look)
        count = self._scenario.token_count
        self.clock.run(lambda: any(len(run.times) >= count for run in self.runs))
        rate = sum(len(run.times) for run in self.runs) / self.clock.now
        return Outcome(rate, self._verified, self._accepted, self._held, [run.times for run in self.runs])

    def vary(self, seconds: float) -> float:
        """Return the seconds of one step that takes so long as a rule."""
        return seconds * self._draw.uniform(1 - self._scenario.jitter, 1 + self._scenario.jitter)

    def hint(self, run: Run, hint: Hint) -> None:
        """Take in a hint."""
        if run.box.add(hint, run.chosen):
            run.hold.record_hint(self.clock.now, hint.next_due, hint.end)
        self._look()

    def _look(self) -> None:
        if self._is_busy:
            return
        found = [self.calibration.best(run.box.candidates(run.chosen), MOST_TOKENS) for run in self.runs]
        stepping, again = list(range(len(self.runs))), 0.0
        scenario = self._scenario
        if scenario.is_hinted and (scenario.is_shared if scenario.holds is None else scenario.holds):
            holds = [partial(self._hold, run, best) for run, best in zip(self.runs, found, strict=True)]
            stepping, again = divide(holds, self.times.seconds)
        if stepping:
            self._step([(self.runs[index], found[index]) for index in stepping])
        else:
            self.clock.after(again - self.clock.now, self._look)

    def _hold(self, run: Run, best: tuple[Candidate, list[float]] | None, others_step: float | None) -> float | None:
        survival = best[1][-1] if best is not None else None
        odds = self.calibration.mean(self._maker)
        longest = self.times.seconds(len(self.runs))
        return run.hold.until(self.clock.now, survival, odds, others_step, longest)

    def _step(self, parts: list[tuple[Run, tuple[Candidate, list[float]] | None]]) -> None:
        offers = [Offer(best[1] if best is not None else []) for _, best in parts]
        counts = select(offers, len(parts), 0, self._scenario.row_limit, self.times).counts
        hints = [best[0].tokens[:count] if best else () for (_, best), count in zip(parts, counts, strict=True)]
        self._is_busy = True
        for run, _ in parts:
            self._held += self.clock.now - run.ready_since
        rows = len(parts) + sum(counts)
        multiple = self._scenario.row_multiple
        padded = -(-rows // multiple) * multiple
        seconds = self.vary(self._scenario.verify + padded * self._scenario.verify_row)
        seconds *= 5 if self._draw.random() < self._scenario.slow_share else 1
        ended = partial(self._end, [run for run, _ in parts], hints, rows, self.clock.now)
        self._processor.start(seconds, ended)

    def _end(self, runs: list[Run], hints: list[tuple[int, ...]], rows: int, started: float) -> None:
        self._is_busy = False
        now = self.clock.now
        self.times.record(rows, now - started)
        for run, tokens in zip(runs, hints, strict=True):
            before = run.length
            for token in tokens:
                if token != run.text.tokens[run.length]:
                    break
                run.length += 1
            self._verified += len(tokens)
            self._accepted += run.length - before
            run.length += 1
            run.times += [now] * (run.length - before)
            run.ready_since = now
            run.hold.record_step(now, run.length)
            if self._scenario.is_hinted:
                commit = run.chosen[before:]
                rate = run.hold.tokens_per_second
                arrives = partial(self._draft.commit, self.runs.index(run), before, commit, rate)
                self.clock.after(self._scenario.round_trip / 2, arrives)
        self.clock.after(0, self._look)


class Draft:
    """The draft: one step at a time, of any lines of any sessions."""

    def __init__(self, simulation: Simulation, scenario: Scenario, processor: Processor) -> None:
        self._simulation = simulation
        self._scenario = scenario
        self._processor = processor
        calibration = Calibration()
        self._horizons = [Horizon(_PROMPT, calibration, 1) for _ in simulation.runs]
        self._probes = Probes()
        self._probed = 0
        self._rates = [0.0] * len(simulation.runs)
        profile = [(rows, scenario.draft + (rows - 1) * scenario.draft_row) for rows in _PROFILED]
        self._times = StepTimes(profile)
        self._is_busy = False
        if scenario.is_hinted:
            simulation.clock.after(0, self._look)

    def commit(self, session: int, position: int, tokens: Sequence[int], rate: float) -> None:
        """Take in committed tokens."""
        self._horizons[session].commit(position, tokens)
        self._rates[session] = rate
        self._look()

    def _worth(self, session: int) -> list[tuple[float, Line]]:
        cost = self._times.seconds(1) if self._scenario.is_shared else 0.0
        return self._horizons[session].to_continue(least_survival(self._rates[session], cost))

    def _look(self) -> None:
        if self._is_busy or self._simulation.clock.now >= self._scenario.frozen_at:
            return
        sessions = range(len(self._horizons))
        work = [(odds, session, line) for session in sessions for odds, line in self._worth(session)]
        work.sort(key=lambda entry: -entry[0])
        if work:
            count, _ = best_prefix([odds for odds, _, _ in work], 0.0, 0, self._times)
            chosen = [(session, line) for _, session, line in work[:count]]
        elif not (chosen := self._probe()):
            return
        self._is_busy = True
        seconds = self._scenario.draft + (len(chosen) - 1) * self._scenario.draft_row
        ended = partial(self._end, chosen, self._simulation.clock.now)
        self._processor.start(self._simulation.vary(seconds), ended)

    def _probe(self) -> list[tuple[int, Line]]:
        """Return a line to guess one token of, or nothing yet."""
        clock = self._simulation.clock
        wait = self._probes.seconds_to_wait(clock.now, self._times.seconds(1))
        if wait > 0:
            clock.after(wait, self._look)
            return []
        for _ in self._horizons:
            self._probed = (self._probed + 1) % len(self._horizons)
            if (line := self._horizons[self._probed].to_probe()) is not None:
                return [(self._probed, line)]
        return []

    def _end(self, work: list[tuple[int, Line]], started: float) -> None:
        self._is_busy = False
        clock = self._simulation.clock
        self._times.record(len(work), clock.now - started)
        self._probes.record_step(clock.now)
        for session, line in work:
            if line.is_alive:
                horizon, text = self._horizons[session], self._simulation.runs[session].text
                choices = text.choices(horizon.length, line.path)
                horizon.extend(line, choices if self._scenario.has_branches else choices[:1])
                is_next = any(line is other for _, other in self._worth(session))
                hint = horizon.hint(line, self._times.seconds(1) if is_next else None)
                run = self._simulation.runs[session]
                clock.after(self._scenario.round_trip / 2, partial(self._simulation.hint, run, hint))
        clock.after(0, self._look)


def simulate(scenario: Scenario) -> Outcome:
    """Run one scenario."""
    return Simulation(scenario).run()
