"""A draft's steps one after another on the device: the host lays one out while another is computed.

::

    host    | lay out 1, 2 |  3     |  4     |        | fetch
    device          | step 1 | step 2 | step 3 | step 4 |
                            chosen -> the next step's tokens

All that a step needs is known before it, but for its tokens: these it takes from where the step
before has chosen them. The host hears of them a step later, and ends the run where nothing is to
follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from slipstream.engine.model import Segment
from slipstream.engine.stop_flag import StopFlag
from slipstream.engine.torch.cuda.chooser import Chooser
from slipstream.engine.torch.cuda.recorded_forward import RecordedForward
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule


class CudaRunner:
    """`slipstream.engine.model.MultiStepRunner` of a backend whose forwards it shares."""

    def __init__(self, forward_of: Callable[[int], RecordedForward], chooser: Chooser, most_rows: int) -> None:
        """``forward_of`` so many rows, of which a step has at most ``most_rows``."""
        self._forward_of, self._chooser, self._most_rows = forward_of, chooser, most_rows

    @torch.inference_mode()
    def run(
        self, segments: list[Segment], rules: Sequence[SamplingRule], count: int, stop_flag: StopFlag
    ) -> list[list[Choice]]:
        """See `slipstream.engine.model.MultiStepRunner`. Where it ends early a step may have been computed
        in vain."""
        if sum(len(segment.tokens) for segment in segments) > self._most_rows:
            return []
        row_count, done, appended = len(segments), 0, segments
        self._chooser.begin_run(rules, [segment.end for segment in segments], count)
        running = {row: rule.ends for row, rule in enumerate(rules)}
        while done < count:
            forward = self._forward_of(sum(len(segment.tokens) for segment in appended))
            forward.step.lay_out(appended)
            for tokens in self._chooser.arrived_tokens():
                running = {row: ends for row, ends in running.items() if tokens[row] not in ends}
            if done and (stop_flag.is_set or not running):
                break
            if done:
                forward.step.input_ids[0, :row_count].copy_(self._chooser.next_tokens())
            self._chooser.choose(forward()[:row_count])
            done += 1
            appended = [Segment([0], segment.end + done - 1, segment.pages, 1) for segment in segments]
        return self._chooser.fetch()
