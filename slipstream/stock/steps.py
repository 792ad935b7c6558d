"""The steps of one job behind a stock engine.

A step without a hint is a row of the server's own greedy continuation, which streams on as long as
the job's choices agree with it. A step with a hint asks for the rows after each of its tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence as TokenSequence
from contextlib import aclosing

from slipstream.engine.engine import Append, Appended
from slipstream.engine.hint_scheduler import HintScheduler
from slipstream.engine.job import Job
from slipstream.engine.pages import PagePool
from slipstream.engine.run_job import RunJob
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.engine.step_clock import StepClock
from slipstream.engine.step_note import OnStep
from slipstream.engine.worker import OnParts
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.sampling.partial.decide import logprobs_from
from slipstream.sampling.row import Row
from slipstream.stock.choosing import Chooser
from slipstream.stock.protocol import Ask, EngineLostError, EngineRefusedError
from slipstream.stock.served import StockServed
from slipstream.stock.server import StockServer


class StockSteps:
    """Runs jobs against one stock engine. It belongs to one event loop.

    No KV is here: the cache holds tokens only, each sequence in one page of a whole context.
    """

    def __init__(
        self,
        server: StockServer,
        served: StockServed,
        limits: BatchLimits,
        profile: TokenSequence[tuple[int, float]],
        *,
        most_sequences: int,
        on_step: OnStep,
    ) -> None:
        """``profile``: (rows, seconds) of a step, as `slipstream.stock.trial` measured it."""
        self.engine = server.engine
        self.served = served
        self.hinting = HintScheduler(limits, profile, 1)
        self.step_count = 0
        self.server = server
        self._chooser = Chooser(server.engine, server.facts, served.model.vocabulary_size)
        self._clock = StepClock(profile, on_step)
        # Twice as many: a closed sequence keeps its page until its job has ended.
        self._cache = SequenceCache(PagePool(2 * most_sequences), served.context_length + 1)
        self._hinted: dict[Job, asyncio.Event] = {}

    async def run(self, job: Job, on_parts: OnParts) -> None:
        """Take steps until the job is done. EngineLostError if the server stays away for longer
        than patience lasts; raises the job's own errors."""
        self._hinted[job] = asyncio.Event()
        try:
            self._clock.record_arrival(job)
            job.begin(self._cache, self.served.context_length, self.served.model.vocabulary_size)
            self.hinting.admit(job)
            await self._run(job, on_parts)
        finally:
            del self._hinted[job]
            self._settle(job)

    def end(self, job: Job) -> None:
        """Record that a job has ended, and make its last part."""
        self._clock.make_part(job, is_over=True)
        self._clock.record_end(job)

    def add_hint(self, run: RunJob) -> None:
        """Let a run look at a hint that came."""
        if (hinted := self._hinted.get(run)) is not None:
            hinted.set()

    def forget(self, sequence: Sequence) -> None:
        """Forget the tokens and the structure of a sequence that is closed and has no job."""
        self._cache.release(sequence)
        self.served.matchers.forget_sequence(sequence)

    async def _run(self, job: Job, on_parts: OnParts) -> None:
        append: Append | None = None
        lost_since, length = None, -1
        while True:
            if append is None and (append := await self._next_append(job)) is None:
                continue
            try:
                await self.server.check()
                if append.wanted == 1 and not append.scored and isinstance(job, RunJob):
                    streamed, append = append, None  # what a stream has brought is recorded already
                    done = await self._stream(job, streamed, on_parts)
                else:
                    done = await self._step(job, append, on_parts)
                    append = None
            except EngineLostError as error:
                if length != len(job.sequence) or lost_since is None:  # it has made progress
                    lost_since, length = time.monotonic(), len(job.sequence)
                await self.server.wait(error, lost_since)
                continue
            if done:
                return

    async def _next_append(self, job: Job) -> Append | None:
        """Return the next step's part of a job; None if it waited for a hint and has to look
        again."""
        if self._takes_hints(job):
            hinted = self._hinted[job]
            hinted.clear()
            stepping, pause = self.hinting.prepare([job])
            if not stepping:
                try:
                    async with asyncio.timeout(pause):
                        await hinted.wait()
                except TimeoutError:
                    pass
                return None
        return self._append(job)

    def _takes_hints(self, job: Job) -> bool:
        """Return whether the next step may verify a hint. The step that reads a prompt may not: the
        server would read it once for each row."""
        return isinstance(job, RunJob) and job.has_begun_choosing

    def _append(self, job: Job) -> Append:
        count = len(job.pending)
        self._cache.extend(job.sequence, job.pending)
        return job.append(count)

    def _rows(self, append: Append) -> list[Row]:
        sequence, rule, wanted = append.sequence, append.rule, append.wanted
        first = len(sequence) - wanted + 1
        rows = [Row(rule, position, sequence.tokens) for position in range(first, first + wanted)]
        if rule.structure is not None:
            masks = self.served.matchers.masks(sequence, rule, wanted, append.committed_length)
            for row, allowed in zip(rows, masks, strict=True):
                row.allowed = allowed
        return rows

    async def _stream(self, job: RunJob, append: Append, on_parts: OnParts) -> bool:
        """Follow the server's continuation as long as the choices agree with it and no hint is
        better. Returns whether the job is done."""
        top_count = append.top_logprob_count
        rows, started, told = self._rows(append), time.monotonic(), False
        wanted = self._chooser.first_wanted(rows, top_count)
        stream = self.engine.continue_greedily(job.sequence.tokens[:], _stream_length(job), wanted.likeliest_count)
        async with aclosing(stream):
            async for found in stream:
                choice = await self._chooser.choose(found, rows[0], job.sequence.tokens, top_count)
                told = True
                if self._record(job, append, Appended([choice], []), started, on_parts):
                    return True
                if choice.token != found.token or self._has_better(job):
                    return False
                append = self._append(job)
                rows, started = self._rows(append), time.monotonic()
        if not told:
            raise EngineRefusedError(f"{self.server.facts.engine} has ended its answer without a token")
        return False

    def _has_better(self, job: RunJob) -> bool:
        """Return whether the next step verifies a hint, or waits for one."""
        stepping, _ = self.hinting.prepare([job])
        return not stepping or (job.hints is not None and not job.may_take_hint)

    async def _step(self, job: Job, append: Append, on_parts: OnParts) -> bool:
        """Ask for all rows of a step at once. Returns whether the job is done."""
        tokens, top_count = job.sequence.tokens, append.top_logprob_count
        hint = tokens[len(tokens) - append.wanted + 1 :]
        known = tokens[: len(tokens) - len(hint)]
        rows, started = self._rows(append), time.monotonic()
        wanted = self._chooser.first_wanted(rows, top_count)
        scores = await self._scores(append, known)
        found = await self.engine.score(Ask(known, hint, wanted))
        answer = Appended([], scores)
        for index, (row, stock_row) in enumerate(zip(rows, found, strict=True)):
            choice = await self._chooser.choose(stock_row, row, tokens[: row.position], top_count)
            answer.choices.append(choice)
            if index < len(hint) and choice.token != hint[index]:  # what follows is never chosen
                break
        return self._record(job, append, answer, started, on_parts)

    async def _scores(self, append: Append, tokens: TokenSequence[int]) -> list[TokenLogprobs]:
        if not append.scored:
            return []
        top_count = append.top_logprob_count or 0
        rows = await self.engine.score_tail(tokens, len(append.scored), max(1, top_count))
        return [logprobs_from(row, token, top_count) for row, token in zip(rows, append.scored, strict=True)]

    def _record(self, job: Job, append: Append, answer: Appended, started: float, on_parts: OnParts) -> bool:
        """Give a job the answer of its step. Returns whether the job is done."""
        if not append.prompt_count:
            self.hinting.times.record(append.wanted, time.monotonic() - started)
        self._clock.record_step_time([(job, append)], started, 1)
        self.step_count += 1
        done = job.record_step(answer)
        self._settle(job)
        if not done and self._clock.make_part(job):
            on_parts([job])
        self._clock.report_step()
        return done

    def _settle(self, job: Job) -> None:
        """Drop the tokens of hints that were wrong."""
        settled = job.settled_length
        if settled is not None and 0 <= settled < len(job.sequence):
            self._cache.truncate(job.sequence, settled)


def _stream_length(job: RunJob) -> int:
    """Return how many rows a run may read of a stream."""
    if job.hints is not None and job.hints.terms.fixed_count:
        return 1
    return max(1, min(job.until_length, job.granted_length) - job.length)
