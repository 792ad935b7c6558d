"""The simulated draft: one step at a time, of any lines of any sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from draft_service.worth import BRANCH_STEP_SECONDS, SEND_SECONDS
from slipstream.engine.hinting.calibration import Calibration
from slipstream.engine.hinting.hints import Hint
from slipstream.engine.hinting.horizon import Horizon, Line, Probes, least_survival
from slipstream.engine.hinting.selection import best_prefix
from slipstream.simulation.clock import Clock, Processor
from slipstream.simulation.owner import Owner
from slipstream.simulation.scenario import PROMPT, Scenario, Text
from slipstream.step_times import StepTimes


class Draft:
    """The draft: one step at a time, of any lines of any sessions."""

    def __init__(
        self,
        scenario: Scenario,
        clock: Clock,
        processor: Processor,
        texts: Sequence[Text],
        send: Callable[[int, Hint], None],
        vary: Callable[[float], float],
    ) -> None:
        """``send`` passes on a hint for a session; ``vary`` returns the seconds of one step that
        takes so long as a rule."""
        self._vary = vary
        self._scenario, self._clock, self._processor, self._texts, self._send = scenario, clock, processor, texts, send
        calibration = Calibration()
        self._horizons = [Horizon(PROMPT, calibration, 1) for _ in texts]
        self._probes = Probes()
        self._probed = 0
        self._prices = [0.0] * len(texts)
        self._resting = [False] * len(texts)
        self._untold: dict[Line, int] = {}
        """Tokens of each line that no hint has had."""
        self._times = StepTimes(scenario.draft_times())
        """Times of the steps, as the draft has seen them."""
        self._usual = StepTimes(scenario.draft_times())
        self._is_busy = False
        self._has_branches = scenario.has_branches and self._usual.seconds(1) >= BRANCH_STEP_SECONDS
        if scenario.is_hinted and not scenario.takes_ngrams:
            clock.after(0, self._look)

    def commit(self, session: int, position: int, tokens: Sequence[int], owner: Owner) -> None:
        """Take in committed tokens, and what a session's owner says."""
        self._horizons[session].commit(position, tokens)
        self._prices[session] = owner.price
        self._resting[session] = not owner.may_guess
        self._untold = {line: count for line, count in self._untold.items() if line.is_alive}
        self._look()

    def _worth(self, session: int) -> list[tuple[float, Line]]:
        if self._resting[session]:
            return []
        cost = self._times.seconds(1) if self._scenario.is_shared else 0.0
        return self._horizons[session].to_continue(least_survival(self._prices[session], cost))

    def _look(self) -> None:
        if self._is_busy or self._clock.now >= self._scenario.frozen_at:
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
        ended = partial(self._end, chosen, self._clock.now)
        self._processor.start(self._vary(self._usual.seconds(len(chosen))), ended)

    def _probe(self) -> list[tuple[int, Line]]:
        """Return a line to guess one token of, or nothing yet."""
        clock = self._clock
        wait = self._probes.seconds_to_wait(clock.now, self._times.seconds(1))
        if wait > 0:
            clock.after(wait, self._look)
            return []
        for _ in self._horizons:
            self._probed = (self._probed + 1) % len(self._horizons)
            if not self._resting[self._probed] and (line := self._horizons[self._probed].to_probe()) is not None:
                return [(self._probed, line)]
        return []

    def _end(self, work: list[tuple[int, Line]], started: float) -> None:
        self._is_busy = False
        self._times.record(len(work), self._clock.now - started)
        self._probes.record_step(self._clock.now)
        for session, line in work:
            if line.is_alive:
                horizon = self._horizons[session]
                choices = self._texts[session].choices(horizon.length, line.path)
                horizon.extend(line, choices if self._has_branches else choices[:1])
                self._untold[line] = self._untold.get(line, 0) + 1
                self._tell(session, line)
        self._clock.after(0, self._look)

    def _tell(self, session: int, line: Line) -> None:
        """Send a line's hint if it is due: the first token at once, later ones together."""
        is_next = any(line is other for _, other in self._worth(session))
        count, step = self._untold[line], self._times.seconds(1)
        if is_next and len(line.path) > 1 and (count + 1) * step <= SEND_SECONDS:
            return
        del self._untold[line]
        due = max(1, int(SEND_SECONDS / step)) * step if is_next else None
        hint = self._horizons[session].hint(line, due)
        self._clock.after(self._scenario.round_trip / 2, partial(self._send, session, hint))
