"""A multi-step run on the device: the host lays out one step while another is computed.

::

    host    | lay out 1, 2 |  3     |  4     |        | fetch
    device          | step 1 | step 2 | step 3 | step 4 |
                            chosen -> the next step's tokens

Everything that a step needs is known before it, except its tokens. It reads them from the memory in
which the step before has chosen them. The host gets them a step later, and ends the run when no
sequence is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from slipstream.engine.model import Segment
from slipstream.engine.stop_flag import StopFlag
from slipstream.engine.torch.cuda.chooser import Chooser
from slipstream.engine.torch.cuda.recorded_forward import RecordedForward
from slipstream.sampling.blocks import BlockedLogits
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule


class CudaRunner:
    """A `slipstream.engine.model.MultiStepRunner` that shares its backend's forwards."""

    def __init__(self, forward_of: Callable[[int], RecordedForward], chooser: Chooser, most_rows: int) -> None:
        """``forward_of`` returns the forward for a row count, at most ``most_rows``."""
        self._forward_of, self._chooser, self._most_rows = forward_of, chooser, most_rows

    @torch.inference_mode()
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
        """Run as `slipstream.engine.model.MultiStepRunner` says. If the run ends early, its last
        computed step may be unused."""
        if not drafting or kept is not None:  # what the device chooses is near enough for a draft only
            return []
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
