"""The run of a cell: start the system, send its waves of prompts, and store the results."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from proving import schedule
from proving.disturbances import Disturbance, Wave
from proving.pairs import pair_named
from proving.results import Account, Generated
from proving.schedule import Cell, Turn
from proving.system import Setup, System
from slipstream.client import Client, PeerError, Reply, Result, Settings, TokenLogprobs
from slipstream.errors import SlipstreamError

_LONGEST_PAUSE = 0.2
"""Longest pause, in seconds, before a session joins again."""


class CellRun:
    """One cell, from start-up to its last token."""

    def __init__(
        self,
        cell: Cell,
        prompts: Sequence[Sequence[int]],
        token_count: int,
        seed: int,
        directory: Path,
        backend: str,
        report: Callable[[int], None],
    ) -> None:
        """``report`` gets the number of tokens that have arrived since its last call."""
        self.generated = Generated.empty(len(cell.turns), token_count)
        self.account = Account()
        self._cell = cell
        self._prompts = prompts
        self._token_count = token_count
        self._rng = random.Random(f"cell {cell.index} {seed}")
        self._backend = backend
        self._report = report
        self._directory = directory
        self._row_of = {turn.prompt: row for row, turn in enumerate(cell.turns)}
        self._strikes = Counter[str]()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run the cell. SlipstreamError if the services cannot be started."""
        started = time.monotonic()
        with System(self._setup()) as system, system.client() as client:
            for wave in self._cell.waves:
                self._run_wave(wave, system, client)
        self.account.strikes = dict(self._strikes)
        self.account.seconds = time.monotonic() - started

    def _setup(self) -> Setup:
        lengths = [len(self._prompts[turn.prompt]) + self._token_count for turn in self._cell.turns]
        setup = Setup(
            pair=pair_named(self._cell.pair, self._directory, self._cell.dtype, self._backend),
            session_count=max(wave.session_count for wave in self._cell.waves),
            common_length=sum(lengths) // len(lengths),
            longest_length=max(lengths),
            proxied=self._cell.rough,
        )
        for disturbance in self._cell.disturbances:
            setup = disturbance.setup(setup)
        return setup

    def _run_wave(self, planned: schedule.Wave, system: System, client: Client) -> None:
        met = [*self._cell.disturbances, *planned.disturbances]
        token_count = len(planned.turns) * self._token_count
        wave = Wave(system, client, random.Random(self._rng.random()), token_count, self._complain)
        with self._disturbed(wave, met):
            waiting = deque(planned.turns)
            sessions = [
                threading.Thread(target=self._run_session, args=(wave, waiting, met, random.Random(self._rng.random())))
                for _ in range(planned.session_count)
            ]
            try:
                for session in sessions:
                    session.start()
                for session in sessions:
                    session.join()
            finally:
                waiting.clear()  # an interrupted run starts no more turns

    @contextmanager
    def _disturbed(self, wave: Wave, met: Sequence[Disturbance]) -> Iterator[None]:
        """Apply the disturbances within the context."""
        system = wave.system
        for index, proxy in enumerate(system.verifier_proxies):
            faults = (d.verifier_fault(wave, index, self._strike(d)) for d in met)
            proxy.faults = [fault for fault in faults if fault is not None]
        if system.draft_proxy is not None:
            faults = (d.draft_fault(wave, self._strike(d)) for d in met)
            system.draft_proxy.faults = [fault for fault in faults if fault is not None]
        threads = [threading.Thread(target=self._disturb, args=(wave, d)) for d in met]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            wave.over.set()
            for thread in threads:
                thread.join()

    def _disturb(self, wave: Wave, disturbance: Disturbance) -> None:
        try:
            disturbance.during(wave, self._strike(disturbance))
        except SlipstreamError as error:
            self._complain(f"{disturbance.name}: {error}")
        except Exception as error:  # in a thread it would end the disturbance, and the proof would go on
            self._complain(f"{disturbance.name}: {type(error).__name__}: {error}")

    def _run_session(self, wave: Wave, waiting: deque[Turn], met: Sequence[Disturbance], rng: random.Random) -> None:
        """Run one session of many: it takes turns until none is left."""
        while True:
            time.sleep(rng.random() * _LONGEST_PAUSE)
            try:
                turn = waiting.popleft()
            except IndexError:
                return
            try:
                result = self._run_turn(wave, turn, [*met, *turn.disturbances])
            except PeerError as error:
                self._complain(f"prompt {turn.prompt} got no answer: {error.reason}: {error}")
                continue
            self._keep(turn, result, scored=all(d.scored for d in turn.disturbances))

    def _run_turn(self, wave: Wave, turn: Turn, met: Sequence[Disturbance]) -> Result:
        prompt = self._prompts[turn.prompt]
        settings = Settings(
            temperature=turn.temperature,
            seed=turn.seed,
            max_token_count=self._token_count,
            ignore_end_tokens=True,
            top_logprob_count=0,
        )
        for disturbance in met:
            settings = disturbance.settings(settings)
            disturbance.before(wave.client, prompt)
        predictions = (disturbance.prediction(wave.client, prompt, settings) for disturbance in met)
        prediction = next(filter(None, predictions), None)
        wave.in_flight[turn.prompt] = prompt
        try:
            result = self._read(wave, turn, wave.client.generate(prompt, settings, prediction=prediction), met)
        finally:
            wave.generated[turn.prompt] = self._token_count
            del wave.in_flight[turn.prompt]
        for disturbance in met:
            self._strike(disturbance)(disturbance.strikes_in(result))
        return result

    def _read(self, wave: Wave, turn: Turn, reply: Reply, met: Sequence[Disturbance]) -> Result:
        """Return a turn's whole result, read by one reader or by one that vanishes and comes
        back."""
        leaving = [disturbance for disturbance in met if disturbance.reader_leaves_after is not None]
        tokens: list[int] = []
        logprobs: list[TokenLogprobs] = []
        while not self._read_on(wave, turn, reply, len(tokens), leaving):
            tokens += reply.result.token_ids
            logprobs += reply.result.logprobs
            for disturbance in leaving:
                self._strike(disturbance)(1)
            reply = wave.client.watch(reply.result.session_id, reply.result.turn, len(tokens))
        result = reply.result
        return replace(result, token_ids=tokens + result.token_ids, logprobs=logprobs + result.logprobs)

    def _read_on(self, wave: Wave, turn: Turn, reply: Reply, before: int, leaving: Sequence[Disturbance]) -> bool:
        """Read until the turn's end, and return True, or until it is time to leave."""
        longest = min((d.reader_leaves_after or 0 for d in leaving), default=None)
        told = 0
        for _ in reply.deltas():
            count = len(reply.result.token_ids)
            wave.generated[turn.prompt] = before + count
            self._report(count - told)
            told = count
            if longest is not None and longest <= count < self._token_count - before:
                reply.detach()  # first: a reply that is merely left ends its turn
                return False
        return True

    def _keep(self, turn: Turn, result: Result, *, scored: bool) -> None:
        row = self._row_of[turn.prompt]
        tokens = result.token_ids[: self._token_count]
        self.generated.tokens[row, : len(tokens)] = tokens
        logprobs = [entry.logprob for entry in result.logprobs[: self._token_count]]
        self.generated.logprobs[row, : len(logprobs)] = np.array(logprobs, np.float32)
        if len(result.token_ids) != self._token_count or len(result.logprobs) != scored * self._token_count:
            self._complain(
                f"prompt {turn.prompt} got {len(result.token_ids)} tokens and {len(result.logprobs)} "
                f"log-probabilities, not {self._token_count}: {result.finish_reason}"
            )

    def _strike(self, disturbance: Disturbance) -> Callable[[int], None]:
        return partial(self._count, disturbance.name)

    def _count(self, name: str, count: int) -> None:
        with self._lock:
            self._strikes[name] += count

    def _complain(self, complaint: str) -> None:
        with self._lock:
            self.account.complaints.append(f"cell {self._cell.index}: {complaint}")
