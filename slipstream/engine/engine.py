"""One forward over a ragged batch: append tokens to sequences and choose at the wanted rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from slipstream.engine.errors import OutOfPagesError
from slipstream.engine.hidden_heads import HiddenHeads, Settled
from slipstream.engine.hinting.hints import MOST_TOKENS
from slipstream.engine.model import Backend, Segment
from slipstream.engine.multi_step import MultiStepRun
from slipstream.engine.pages import PagePool
from slipstream.engine.row_observer import RowObserver, tell_run_steps, tell_step, watches_any
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.engine.stop_flag import StopFlag
from slipstream.engine.structure_matchers import StructureMatchers
from slipstream.processors import Processors
from slipstream.sampling.blocks import BlockedLogits, in_blocks
from slipstream.sampling.choose import choose_apart
from slipstream.sampling.faults import LogitsNotFiniteError
from slipstream.sampling.logprobs import logprobs_of
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.sampling.row import Choice, Mask, Proposed, Row
from slipstream.sampling.rule import SamplingRule

PROFILED_COUNTS = (1, 8, 16, 24, 32, 40, 48, 56, 64, 128, 256)
"""Token counts of the forwards that a profile measures."""

_PROFILE_TRIALS = 2
"""Trials of each token count, after its time has settled."""

_PROFILE_TRIAL_SECONDS = 5e-3
"""Shortest time to spend on the trials of one token count. A process that has just started, on
processors that were idle, needs two or three times as long for a short forward."""

_PROFILED_RUN = 8
"""Steps of the multi-step run that measures a draft's lone token. Such a token mostly follows
another one in a run."""

_PROFILED_RUN_SECONDS = 5e-3
"""Longest single step, in seconds, that is measured by a run. In a longer one the rest of a step
does not count."""

_HEAD_TRIALS = 5
"""Guesses of the heads that a profile measures."""

_PROFILE_FORWARDS = 120
"""Longest profile, as a multiple of its shortest forward. A step's cost is known from several token
counts."""

_MOST_PROFILE_SECONDS = 6.0
"""Upper bound of what `_PROFILE_FORWARDS` allows, in seconds."""

_WARMED_COUNTS = (8, 16, 24, 32)
"""Token counts of common forwards."""

_NEVER = StopFlag()


class Append(NamedTuple):
    """One sequence's part of a step. `SequenceCache.extend` has already given it its pages.

    The last ``token_count`` tokens of the sequence are new. A token is chosen after each of the
    last ``wanted`` tokens. The tokens from ``committed_length`` on are guesses, and
    ``prompt_count`` of the new ones belong to a prompt. ``proposed`` are the draws that the first
    of these choices test, under the ratio test. ``drafting`` is set for a draft's own choices, with
    ``candidate_count`` candidates each. ``top_logprob_count`` asks for the choices'
    log-probabilities and those of that many likeliest tokens. ``scored`` are the tokens that follow
    the rows just before the wanted ones; their log-probabilities are asked for too.
    """

    sequence: Sequence
    token_count: int
    wanted: int
    rule: SamplingRule
    committed_length: int = 0
    prompt_count: int = 0
    drafting: bool = False
    candidate_count: int = 0
    proposed: TokenSequence[Proposed] = ()
    top_logprob_count: int | None = None
    scored: TokenSequence[int] = ()

    @property
    def row_count(self) -> int:
        """Rows of logits: the ones asked for, or one that shows whether the results are finite
        numbers."""
        return max(1, self.wanted + len(self.scored))


@dataclass(eq=False, slots=True)
class Appended:
    """A step's answer to one append: ``wanted`` choices and the log-probabilities of ``scored``.

    Or the error of this one append: nothing can be chosen after its tokens.
    """

    choices: list[Choice]
    scores: list[TokenLogprobs]
    error: Exception | None = None


class Engine:
    """A model, its pages, and the step that joins them. One thread at a time may use it."""

    def __init__(self, backend: Backend, *, kv_memory_mib: float, heads: HiddenHeads | None = None) -> None:
        """Reserve KV memory. UnsupportedModelError if it holds no page. ``heads`` read the
        backend's hidden states."""
        self.backend = backend
        self.model = backend.model
        self.heads = heads
        reserved = backend.reserve(kv_memory_mib)
        if heads is not None:
            heads.reserve(reserved.page_count, reserved.page_size)
        self.page_size = reserved.page_size
        self.kv_byte_count = reserved.byte_count
        self.pool = PagePool(reserved.page_count)
        self.cache = SequenceCache(self.pool, self.page_size)
        self.context_length = min(self.model.context_length, reserved.page_count * self.page_size)
        self.step_count = 0
        self.step_times: list[tuple[int, float]] = []
        """Result of the last `profile`."""
        self.head_seconds = 0.0
        """Seconds in which the heads guess after one sequence, as the last `profile` found."""
        self.matchers = StructureMatchers()
        self.observer: RowObserver | None = None
        """An observer of the rows at which a target chooses."""

    @property
    def mark(self) -> str:
        """Four hexadecimal digits: a hash of all that affects the logits' bits besides the
        model."""
        return self.backend.mark

    @property
    def row_multiple(self) -> int:
        """A step costs as much as its rows rounded up to a multiple of this."""
        return self.backend.row_multiple

    @property
    def processors(self) -> Processors:
        """Processors that compute a forward, as far as the backend can tell."""
        return self.backend.processors

    @property
    def kv_token_count(self) -> int:
        """Tokens that all KV pages hold together."""
        return self.pool.page_count * self.page_size

    @property
    def caveats(self) -> tuple[str, ...]:
        """Promises that do not hold: none, because a row's bits depend on its sequence alone."""
        return ()

    def profile(self, seconds: float) -> list[tuple[int, float]]:
        """Measure forwards for about ``seconds``, or longer where a large model needs it. Returns
        (token count, seconds), counts rising. The engine's state is unchanged afterwards."""
        begun = time.monotonic()
        points: list[tuple[int, float]] = []
        sequence = Sequence("profile")
        for token_count in PROFILED_COUNTS:
            needed = min(_PROFILE_FORWARDS * points[0][1], _MOST_PROFILE_SECONDS) if points else 0.0
            if token_count > self.context_length or time.monotonic() > begun + max(seconds, needed):
                break
            least = self._measure(sequence, token_count)
            if token_count == 1 and self.backend.single_rows and least < _PROFILED_RUN_SECONDS:
                least = self._measure(sequence, token_count, min(_PROFILED_RUN, self.context_length))
            points.append((token_count, least))
        self.head_seconds = self._measure_heads(sequence)
        self.step_count = 0  # count only steps that serve requests
        self.step_times = points
        return points

    def _measure(self, sequence: Sequence, token_count: int, step_count: int = 1) -> float:
        """Return the seconds of a step that appends ``token_count`` tokens to an empty sequence, or
        of each of ``step_count`` steps in a run."""
        times: list[float] = []
        drafting = self.backend.single_rows
        append = Append(sequence, token_count, 1 if drafting else token_count, SamplingRule(), drafting=drafting)
        settled = self.backend.settled_after
        while len(times) < settled + _PROFILE_TRIALS or sum(times[settled:]) < _PROFILE_TRIAL_SECONDS:
            self.cache.extend(sequence, [0] * token_count)
            started = time.monotonic()
            self.steps([append], step_count)
            times.append(time.monotonic() - started)
            self.cache.release(sequence)
        return min(times) / step_count

    def _measure_heads(self, sequence: Sequence) -> float:
        if self.heads is None:
            return 0.0
        rule, times = SamplingRule(), []
        self.cache.extend(sequence, [0])
        for _ in range(_HEAD_TRIALS):
            self.step([Append(sequence, 1, 1, rule)])
            started = time.monotonic()
            self.heads.guess([Settled(0, 1, 0, 0, sequence.pages, [0, 0], rule, MOST_TOKENS)])
            times.append(time.monotonic() - started)
        self.cache.release(sequence)
        return min(times)

    def warm(self, seconds: float) -> None:
        """Run the shapes of longer chats until their times settle, for about ``seconds`` at most.
        The engine's state is unchanged afterwards."""
        give_up = time.monotonic() + seconds
        sequence, rule, served = Sequence("warm"), SamplingRule(), self.step_count
        drafting = self.backend.single_rows
        for length in self.backend.warmed_lengths:
            counts = (1,) if drafting else _WARMED_COUNTS
            if not self.backend.settled_after or length + max(counts) > self.context_length:
                break
            self.cache.extend(sequence, [0] * (length - len(sequence)))
            self.step([Append(sequence, len(sequence), 1, rule)])
            for count in counts:
                for _ in range(self.backend.settled_after):
                    if time.monotonic() > give_up:
                        break
                    self.cache.extend(sequence, [0] * count)
                    self.steps([Append(sequence, count, count, rule, drafting=drafting)], 8 if drafting else 1)
                    self.cache.truncate(sequence, length)
        self.cache.release(sequence)
        self.step_count = served

    def release_sequence(self, sequence: Sequence) -> None:
        """Release a sequence's pages and its structure's matcher."""
        self.cache.release(sequence)
        self.matchers.forget_sequence(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Throw away what was written for a sequence and cannot be trusted. The sequence forgets
        all its tokens, and its unshared pages are erased. Raises what the device raises if it can
        no longer compute."""
        self.backend.erase_pages([page for page in sequence.pages if self.pool.writable(page)])
        self.cache.release(sequence)

    def steps(self, appends: TokenSequence[Append], count: int, stop_flag: StopFlag = _NEVER) -> list[list[Appended]]:
        """Return for each append the answer of one step, or of ``count`` steps of a multi-step run.
        A run gives fewer answers if it ends early or finds no pages."""
        if count > 1:
            try:
                return self.run_multi_step(appends, count, stop_flag)
            except OutOfPagesError:
                pass
        return [[answer] for answer in self.step(appends)]

    def step(self, appends: TokenSequence[Append]) -> list[Appended]:
        """Run one forward. Returns for each append its ``wanted`` chosen tokens and what else it
        asks for.

        An append whose logits are not finite numbers gets an error, and its sequence is discarded.
        """
        segments = [
            Segment(
                tokens=append.sequence.tokens[len(append.sequence) - append.token_count :],
                start=len(append.sequence) - append.token_count,
                pages=append.sequence.pages,
                wanted=append.row_count,
            )
            for append in appends
        ]
        self._copy_pages()
        logits = self.backend.forward(segments)
        self.step_count += 1
        answers = self._answer(appends, in_blocks(logits))
        for append, answer in zip(appends, answers, strict=True):
            if isinstance(answer.error, LogitsNotFiniteError):
                self.discard(append.sequence)
        return answers

    def _copy_pages(self) -> None:
        copies = self.cache.take_copies()
        self.backend.copy_pages(copies)
        if self.heads is not None:
            self.heads.copy_pages(copies)

    @property
    def multi_step(self) -> bool:
        """True if `run_multi_step` may be used."""
        return self.backend.multi_step

    def run_multi_step(
        self, appends: TokenSequence[Append], count: int, stop_flag: StopFlag = _NEVER
    ) -> list[list[Appended]]:
        """Take up to ``count`` steps after the appended tokens, and append each choice for the next
        step.

        Returns for each append one choice a step. There are fewer if a choice is one of the rule's
        end tokens, or if the ``stop_flag`` is set, which is read after each step. A sequence that
        was discarded gets its one error instead, as in `step`.

        The last token is not appended. OutOfPagesError as in `SequenceCache.extend`; then nothing
        has changed.
        """
        sequences = [append.sequence for append in appends]
        starts = [len(sequence) for sequence in sequences]
        self._make_room(sequences, count - 1)
        self._copy_pages()
        segments = [
            Segment(sequence.tokens[start - append.token_count : start], start - append.token_count, sequence.pages, 1)
            for append, sequence, start in zip(appends, sequences, starts, strict=True)
        ]
        drafting = all(append.drafting for append in appends)
        run = MultiStepRun(sequences, starts, [append.rule for append in appends], count, stop_flag, drafting=drafting)
        while (tokens := self._take_steps(segments, run)) is not None:
            after = run.step_count - 1
            segments = [
                Segment([token], start + after, sequence.pages, 1)
                for token, sequence, start in zip(tokens, sequences, starts, strict=True)
            ]
        self.step_count += run.step_count
        return [
            self._run_answers(sequence, start, choices)
            for sequence, start, choices in zip(sequences, starts, run.choices(), strict=True)
        ]

    def _take_steps(self, segments: list[Segment], run: MultiStepRun) -> list[int] | None:
        """Take one step or several, and return each sequence's next token; None after the last
        step."""
        first = run.step_count
        kept: list[BlockedLogits] | None = [] if watches_any(self.observer, run.sequences) else None
        tokens = run.record_steps(self._run_steps(segments, run, kept))
        if self.observer is not None and kept is not None:
            tell_run_steps(self.observer, run, first, kept)
        return tokens

    def _run_steps(
        self, segments: list[Segment], run: MultiStepRun, kept: list[BlockedLogits] | None
    ) -> list[list[Choice]]:
        """Return the choices of one step, or of several steps. ``kept`` gets their logits."""
        runner = self.backend.multi_step_runner
        if runner is not None and run.steps_left > 1 and run.needs_logits_only:
            steps = runner.run(segments, run.rules, run.steps_left, run.stop_flag, drafting=run.drafting, kept=kept)
            if steps:  # otherwise a single step chooses
                return steps
        logits = in_blocks(self.backend.forward(segments))
        if kept is not None:
            kept.append(logits)
        return [run.choose(logits)]

    def _run_answers(self, sequence: Sequence, start: int, choices: list[Choice]) -> list[Appended]:
        error = next((c.fault for c in choices if isinstance(c.fault, LogitsNotFiniteError)), None)
        if error is not None:
            self.discard(sequence)
            return [Appended([], [], error)]
        self.cache.truncate(sequence, start + len(choices) - 1)
        return [Appended([choice], []) for choice in choices]

    def _make_room(self, sequences: list[Sequence], count: int) -> None:
        """Extend all by ``count`` tokens yet unknown, or none."""
        lengths = [len(sequence) for sequence in sequences]
        try:
            for sequence in sequences:
                self.cache.extend(sequence, [0] * count)
        except OutOfPagesError:
            for sequence, length in zip(sequences, lengths, strict=True):
                self.cache.truncate(sequence, min(length, len(sequence)))
            raise

    def _answer(self, appends: TokenSequence[Append], logits: BlockedLogits) -> list[Appended]:
        """Choose from and score ``logits``: for each append its scored rows, then its wanted
        ones."""
        rows: list[Row] = []
        chosen_rows: list[int] = []
        answers: list[Appended] = []
        largest = logits.largest()
        are_finite = math.isfinite(sum(largest))
        end = 0
        for append in appends:
            start, end = end, end + append.row_count
            try:  # one sequence's failure must not affect the others
                if not (are_finite or all(map(math.isfinite, largest[start:end]))):
                    raise LogitsNotFiniteError
                rows.extend(self._rows(append))
                chosen_rows.extend(range(end - append.wanted, end))
                answers.append(Appended([], []))
            except Exception as error:
                answers.append(Appended([], [], error))
        if rows:
            choices = iter(choose_apart(logits if len(rows) == end else logits.subset(chosen_rows), rows))
            for append, answer in zip(appends, answers, strict=True):
                if answer.error is None:
                    answer.choices.extend(islice(choices, append.wanted))
        self._score(appends, answers, logits)
        if self.observer is not None:
            tell_step(self.observer, appends, answers, logits)
        return answers

    def _rows(self, append: Append) -> list[Row]:
        sequence, rule, wanted = append.sequence, append.rule, append.wanted
        first = len(sequence) - wanted + 1
        drafting, candidate_count = append.drafting, append.candidate_count
        rows = [  # positional arguments: nine keywords take twice as long
            Row(rule, position, sequence.tokens, None, None, drafting, candidate_count)
            for position in range(first, first + wanted)
        ]
        for row, proposed in zip(rows, append.proposed, strict=False):
            row.proposed = proposed
        if rule.structure is not None and wanted:
            for row, allowed in zip(rows, self._masks(append), strict=True):
                row.allowed = allowed
        return rows

    def _masks(self, append: Append) -> list[Mask | None]:
        return self.matchers.masks(append.sequence, append.rule, append.wanted, append.committed_length)

    def _score(self, appends: TokenSequence[Append], answers: list[Appended], logits: BlockedLogits) -> None:
        """Fill in all requested log-probabilities in one call."""
        if all(append.top_logprob_count is None for append in appends):
            return
        rows: list[int] = []
        tokens: list[int] = []
        counts: list[int] = []
        at = 0
        for append, answer in zip(appends, answers, strict=True):
            end = at + append.row_count
            if append.top_logprob_count is not None and answer.error is None:
                rows.extend(range(end - append.wanted - len(append.scored), end))
                tokens.extend([*append.scored, *(max(0, choice.token) for choice in answer.choices)])
                counts.extend([append.top_logprob_count] * (append.wanted + len(append.scored)))
            at = end
        if not rows:
            return
        scored = logits if len(rows) == at else logits.subset(rows)
        scores = iter(logprobs_of(scored.floats(), tokens, counts))
        for append, answer in zip(appends, answers, strict=True):
            if append.top_logprob_count is not None and answer.error is None:
                answer.scores.extend(next(scores) for _ in append.scored)
                for choice in answer.choices:
                    choice.logprobs = next(scores)
