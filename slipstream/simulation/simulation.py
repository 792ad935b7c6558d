"""A seeded simulation of sessions on one verifier, with a draft that sends hints. It takes no real
time.

Matching, calibration, selection, holding, the draft's horizon and the decisions of a session's
owner are the modules that the services use. Only texts, forwards and the network are made up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.proposers.trials import LONGEST_HOLD, Trials
from slipstream.engine.hinting.calibration import Calibration
from slipstream.engine.hinting.hints import MOST_TOKENS, Candidate, Hint, HintBox, Maker, Source
from slipstream.engine.hinting.holding import Habit, Hold, divide
from slipstream.engine.hinting.selection import Offer, select
from slipstream.simulation.clock import Clock, Processor
from slipstream.simulation.draft import Draft
from slipstream.simulation.owner import Owner
from slipstream.simulation.scenario import PROMPT, Scenario, Text
from slipstream.step_times import StepTimes

if TYPE_CHECKING:
    from slipstream.engine.run_hints import RunHints


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a simulation."""

    tokens_per_second: float
    verified: int
    accepted: int
    held_seconds: float
    token_times: list[list[float]]
    """When each token of each session was chosen."""


class Run:
    """A session at the verifier."""

    def __init__(
        self, text: Text, calibration: Calibration, habit: Habit, owner: Owner, ngrams: RunHints | None
    ) -> None:
        self.text, self.owner = text, owner
        self.ngrams = ngrams
        self.length = PROMPT
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
        self.times = StepTimes(scenario.verify_times(), scenario.row_multiple)
        """Times of the steps, as the verifier has seen them."""
        self._usual = StepTimes(scenario.verify_times(), scenario.row_multiple)
        self.calibration = Calibration()
        habit = Habit()
        texts = [Text(scenario, 1000 * scenario.seed + index) for index in range(scenario.sessions)]
        trials = Trials(lambda: self.clock.now) if scenario.is_shared else None
        self.runs = [
            Run(text, self.calibration, habit, Owner(trials, scenario.sessions), self._ngrams(habit)) for text in texts
        ]
        processor = self._processor if scenario.is_shared else Processor(self.clock)
        self._draft = Draft(scenario, self.clock, processor, texts, self._send, self.vary)
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

    def _ngrams(self, habit: Habit) -> RunHints | None:
        """Return the maker of the hints that a verifier makes itself, if the scenario has it."""
        if not (self._scenario.takes_ngrams and self._scenario.is_hinted):
            return None
        from slipstream.engine.run_hints import HintTerms, RunHints  # needs NumPy, and nothing else here does

        hints = RunHints(HintTerms(takes_ngrams=True), 0)
        hints.bind(self.calibration, habit)
        return hints

    def _send(self, session: int, hint: Hint) -> None:
        """Take in a hint."""
        run = self.runs[session]
        run.owner.hint(hint)
        if run.box.add(hint, run.chosen):
            run.hold.record_hint(self.clock.now, hint.next_due, hint.end)
        self._look()

    def _look(self) -> None:
        if self._is_busy:
            return
        found = [self._best(run) for run in self.runs]
        stepping, again = list(range(len(self.runs))), 0.0
        scenario = self._scenario
        if scenario.is_hinted and (scenario.is_shared if scenario.holds is None else scenario.holds):
            holds = [partial(self._hold, run, best) for run, best in zip(self.runs, found, strict=True)]
            stepping, again = divide(holds, self.times.seconds)
        if stepping:
            self._step([(self.runs[index], found[index]) for index in stepping])
        else:
            self.clock.after(again - self.clock.now, self._look)

    def _best(self, run: Run) -> tuple[Candidate, list[float]] | None:
        if run.ngrams is not None:
            found = run.ngrams.best(run.chosen, MOST_TOKENS)
            return None if found is None else (found[0], [*found[1].survivals])
        return self.calibration.best(run.box.candidates(run.chosen), MOST_TOKENS)

    def _hold(self, run: Run, best: tuple[Candidate, list[float]] | None, others_step: float | None) -> float | None:
        survival = best[1][-1] if best is not None else None
        odds = self.calibration.mean(self._maker)
        plain_rate = 1 / self.times.seconds(len(self.runs))
        return run.hold.until(self.clock.now, survival, odds, others_step, LONGEST_HOLD, plain_rate)

    def _step(self, parts: list[tuple[Run, tuple[Candidate, list[float]] | None]]) -> None:
        offers = [Offer(best[1] if best is not None else []) for _, best in parts]
        counts = select(offers, len(parts), 0, self._scenario.row_limit, self.times).counts
        hints = [best[0].tokens[:count] if best else () for (_, best), count in zip(parts, counts, strict=True)]
        self._is_busy = True
        for run, _ in parts:
            self._held += self.clock.now - run.ready_since
        rows = len(parts) + sum(counts)
        seconds = self.vary(self._usual.seconds(rows))
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
            run.owner.commit(run.ready_since, now, run.length - before, run.length - before - 1)
            run.ready_since = now
            run.hold.record_step(now, run.length)
            if self._scenario.is_hinted:
                commit = run.chosen[before:]
                arrives = partial(self._draft.commit, self.runs.index(run), before, commit, run.owner)
                self.clock.after(self._scenario.round_trip / 2, arrives)
        self.clock.after(0, self._look)


def simulate(scenario: Scenario) -> Outcome:
    """Run one scenario."""
    return Simulation(scenario).run()
