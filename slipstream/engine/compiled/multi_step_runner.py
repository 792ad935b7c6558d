"""Several steps in one call of compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.engine.compiled.decoder import Decoder
from slipstream.engine.compiled.following import following
from slipstream.engine.compiled.forward import Walk
from slipstream.engine.compiled.layout import Layout
from slipstream.engine.compiled.records import RUN, STEP
from slipstream.engine.compiled.workspace import Workspace
from slipstream.engine.model import Segment
from slipstream.engine.stop_flag import StopFlag
from slipstream.sampling.blocks import BlockedLogits
from slipstream.sampling.coupled import SLACK, Found, cut_margins
from slipstream.sampling.kernel import BLOCK
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule, numbers_of

_MOST_KEPT_BYTES = 2**24
"""Bytes of logits that a run keeps at most. More: longer runs of sequences that are observed."""


class CompiledRunner:
    """`slipstream.engine.model.MultiStepRunner` of a backend whose ``step`` it shares."""

    def __init__(
        self, model: Decoder, step: np.ndarray, workspace: Workspace, walk: Walk, *, page_size: int, most_rows: int
    ) -> None:
        """``most_rows`` as a `Layout` has it."""
        self._step, self._workspace, self._walk = step, workspace, walk
        self._page_size, self._most_rows = page_size, most_rows
        self._columns = model.vocabulary_columns
        self._following = np.zeros((), STEP)
        self._maxima = np.empty(-(-model.vocabulary_size // BLOCK) + 1, dtype=np.float32)
        self._run = np.zeros((), RUN)
        self._run["vocabulary_size"] = model.vocabulary_size
        self._run["maxima"] = self._maxima.ctypes.data
        self._run["largest"] = self._maxima.ctypes.data + 4 * (len(self._maxima) - 1)
        self._run["following"] = self._following.ctypes.data
        self._run["slack"] = SLACK
        step["follow"] = following().address

    def run(
        self,
        segments: list[Segment],
        rules: Sequence[SamplingRule],
        count: int,
        stop_flag: StopFlag,
        *,
        drafting: bool,
        kept: list[BlockedLogits] | None = None,
    ) -> list[list[Choice]]:
        """See `slipstream.engine.model.MultiStepRunner`."""
        step, run, row_count = self._step, self._run, len(segments)
        step_bytes = row_count * self._columns * np.dtype(np.float32).itemsize
        if kept is not None and (count := min(count, _MOST_KEPT_BYTES // step_bytes)) < 2:
            return []
        # What follows is laid out as its last step: that has the longest tables. Compiled code
        # writes where each one is.
        last = [Segment([0], segment.end + count - 2, segment.pages, 1) for segment in segments]
        first = Layout(segments, self._page_size, self._most_rows)
        following = Layout(last, self._page_size, self._most_rows)
        following.tell(self._following)
        first.tell(step)
        step["longest"] = self._following["longest"]
        self._workspace.make_room(step)
        logits = np.empty((1 if kept is None else count, row_count, self._columns), dtype=np.float32)
        step["logits"], run["logits_step"] = logits.ctypes.data, 0 if kept is None else step_bytes
        found = Found(count * row_count, 0 if drafting else None)
        rows = np.array([[segment.end for segment in segments], [0] * row_count])  # positions, and whether it has ended
        known_ends = [rule.listed.ends for rule in rules]
        ends, end_places = np.concatenate(known_ends), np.cumsum([0, *map(len, known_ends)])
        numbers = numbers_of(rules)
        run["count"], run["done"], run["row_count"] = count, 0, row_count
        run["positions"], run["ended"] = rows[0].ctypes.data, rows[1].ctypes.data
        run["ends"], run["end_places"] = ends.ctypes.data, end_places.ctypes.data
        run["tokens"], run["scores"] = found.tokens.ctypes.data, found.scores.ctypes.data
        run["logprobs"], run["logprob_count"] = found.logprobs.ctypes.data, min(1, len(found.logprobs))
        run["stop_flag"] = stop_flag.address
        run["numbers"] = numbers.ctypes.data
        step["run"] = run.ctypes.data
        try:
            self._walk(step.ctypes.data, 0)
        finally:
            step["run"] = 0
        done = int(run["done"])
        if kept is not None:
            size = int(run["vocabulary_size"])
            kept += [BlockedLogits(np.ascontiguousarray(each[:, :size])) for each in logits[:done]]
        choices = found.choices(done * row_count)
        if not drafting:
            cut_margins(choices, [bool(rule.temperature) for rule in rules])
        return [choices[at : at + row_count] for at in range(0, len(choices), row_count)]
