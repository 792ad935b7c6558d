"""A multi-step run: several decode steps in one call, each of which appends the tokens of the
last."""

from __future__ import annotations

from collections.abc import Sequence as TokenSequence
from typing import TYPE_CHECKING

from slipstream.engine.sequence import Sequence
from slipstream.engine.stop_flag import StopFlag
from slipstream.sampling.choose import choose_apart, needs_logits_only
from slipstream.sampling.row import VOID, Choice, Row
from slipstream.sampling.rule import SamplingRule

if TYPE_CHECKING:
    from slipstream.sampling.blocks import BlockedLogits


class MultiStepRun:
    """A run that chooses up to ``count`` tokens for each of ``sequences`` by its rule. The
    sequences have room for all tokens but the last.

    ``starts[i]`` is the position of sequence i's first choice. The run ends early if the
    ``stop_flag`` is set, which is read whenever steps are recorded.
    """

    def __init__(
        self,
        sequences: TokenSequence[Sequence],
        starts: list[int],
        rules: TokenSequence[SamplingRule],
        count: int,
        stop_flag: StopFlag,
        *,
        drafting: bool,
    ) -> None:
        self.step_count = 0
        self.lengths = [count] * len(sequences)
        """Number of choices of each sequence. It is below ``count`` after an end token, or once
        another job waits."""
        self.rules, self.stop_flag = rules, stop_flag
        self.drafting = drafting
        """True if the choices are a draft's own."""
        self.sequences, self._starts = sequences, starts
        self._steps: list[list[Choice]] = []

    @property
    def steps_left(self) -> int:
        """Upper bound of the steps that are still to come."""
        return max(self.lengths) - self.step_count

    @property
    def needs_logits_only(self) -> bool:
        """True if a `slipstream.engine.model.MultiStepRunner` may compute it."""
        return all(map(needs_logits_only, self.rules, self._starts))

    @property
    def positions(self) -> list[int]:
        """Each sequence's position of the next choice."""
        return [start + self.step_count for start in self._starts]

    def choose(self, logits: BlockedLogits) -> list[Choice]:
        """Choose from the next step's logits ``[sequences, vocabulary]``."""
        return choose_apart(logits, self._rows())

    def record_steps(self, steps: list[list[Choice]]) -> list[int] | None:
        """Record the choices of some steps. Returns each sequence's next token, or None after the
        last step."""
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
        tokens = [max(0, token) for token in tokens]  # after a sequence's end any token will do
        if self.step_count < max(self.lengths):
            for sequence, start, token in zip(self.sequences, self._starts, tokens, strict=True):
                sequence.tokens[start + index] = token
        return tokens

    def choices(self) -> list[list[Choice]]:
        """Return the choices of each sequence."""
        return [[step[at] for step in self._steps[:length]] for at, length in enumerate(self.lengths)]

    def _rows(self) -> list[Row]:
        return [
            Row(rule, position, sequence.tokens, drafting=self.drafting)
            for sequence, position, rule in zip(self.sequences, self.positions, self.rules, strict=True)
        ]
