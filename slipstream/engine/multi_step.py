"""Several steps in one go: what each step of a run chooses, and what goes into the next."""

from __future__ import annotations

from collections.abc import Sequence as TokenSequence
from typing import TYPE_CHECKING

from slipstream.engine.sequence import Sequence
from slipstream.engine.stop_flag import StopFlag
from slipstream.sampling.blocks import in_blocks
from slipstream.sampling.choose import choose_apart, needs_logits_only
from slipstream.sampling.row import VOID, Choice, Row
from slipstream.sampling.rule import SamplingRule

if TYPE_CHECKING:
    from slipstream.sampling.blocks import BlockedLogits, Logits


class MultiStepRun:
    """Up to ``count`` choices for each of ``sequences``, by its rule, whose tokens already have
    room for all but the last.

    ``starts[i]`` is the position of sequence i's first choice. The run ends early once the
    ``stop_flag`` is said, which is looked at whenever choices are taken.
    """

    def __init__(
        self,
        sequences: TokenSequence[Sequence],
        starts: list[int],
        rules: TokenSequence[SamplingRule],
        count: int,
        stop_flag: StopFlag,
    ) -> None:
        self.step_count = 0
        self.lengths = [count] * len(sequences)
        """Of each sequence's choices: fewer than ``count`` where one is an end token, or another
        job came."""
        self.rules, self.stop_flag = rules, stop_flag
        self._sequences, self._starts = sequences, starts
        self._steps: list[list[Choice]] = []

    @property
    def steps_left(self) -> int:
        """At most."""
        return max(self.lengths) - self.step_count

    @property
    def needs_logits_only(self) -> bool:
        """Whether a `slipstream.engine.model.MultiStepRunner` may run it."""
        return all(map(needs_logits_only, self.rules, self._starts))

    def choose(self, logits: Logits | BlockedLogits) -> list[Choice]:
        """From the logits ``[sequences, vocabulary]`` of the next step."""
        return choose_apart(in_blocks(logits), self._rows_at(self.step_count))

    def record_steps(self, steps: list[list[Choice]]) -> list[int] | None:
        """Go on with what steps have chosen; each sequence's next token, or None after the last
        step."""
        for choices in steps:
            tokens = self._record_step(choices)
            if self.step_count == max(self.lengths):
                return None
        if self.stop_flag.is_set:
            self.lengths = [min(length, self.step_count) for length in self.lengths]
            return None
        return tokens

    def _record_step(self, choices: list[Choice]) -> list[int]:
        index = self.step_count
        self.step_count += 1
        self._steps.append(choices)
        tokens = [choice.token for choice in choices]
        for at, (token, rule) in enumerate(zip(tokens, self.rules, strict=True)):
            if token in rule.ends or token == VOID:
                self.lengths[at] = min(self.lengths[at], index + 1)
        tokens = [max(0, token) for token in tokens]  # after what ends a sequence's run any token will do
        if self.step_count < max(self.lengths):
            for sequence, start, token in zip(self._sequences, self._starts, tokens, strict=True):
                sequence.tokens[start + index] = token
        return tokens

    def choices(self) -> list[list[Choice]]:
        """Each sequence's choices."""
        return [[step[at] for step in self._steps[:length]] for at, length in enumerate(self.lengths)]

    def _rows_at(self, index: int) -> list[Row]:
        return [
            Row(rule, start + index, sequence.tokens, drafting=True)
            for sequence, start, rule in zip(self._sequences, self._starts, self.rules, strict=True)
        ]
