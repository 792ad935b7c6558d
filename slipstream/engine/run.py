"""Several steps in one go: what each step of a run chooses, and what goes into the next."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as TokenSequence

import torch

from slipstream.engine.sequence import Sequence
from slipstream.sampling.choose import choose
from slipstream.sampling.row import VOID, Choice, Row
from slipstream.sampling.rule import SamplingRule


class Run:
    """Up to ``count`` choices for each of ``sequences``, whose tokens already have room for all but the last.

    ``starts[i]`` is the position of sequence i's first choice. The run ends early once ``interrupted`` says so.
    """

    def __init__(
        self,
        sequences: TokenSequence[Sequence],
        starts: list[int],
        rule: SamplingRule,
        count: int,
        interrupted: Callable[[], bool],
    ) -> None:
        self.step_count = 0
        self.lengths = [count] * len(sequences)
        """Of each sequence's choices: fewer than ``count`` where one is an end token, or the run was interrupted."""
        self._sequences, self._starts, self._rule = sequences, starts, rule
        self._interrupted = interrupted
        self._steps: list[list[Choice]] = []

    def next_tokens(self, logits: torch.Tensor) -> list[int] | None:
        """Take a step's logits ``[sequences, vocabulary]``; each sequence's next token, or None after the last step."""
        index = self.step_count
        self.step_count += 1
        self._steps.append(choose(logits, self._rows_at(index)))
        tokens = [choice.token for choice in self._steps[-1]]
        for at, token in enumerate(tokens):
            if token in self._rule.end_token_ids or token == VOID:
                self.lengths[at] = min(self.lengths[at], index + 1)
        if index + 1 == max(self.lengths) or self._interrupted():
            self.lengths = [min(length, index + 1) for length in self.lengths]
            return None
        tokens = [max(0, token) for token in tokens]  # after what ends a sequence's run any token will do
        for sequence, start, token in zip(self._sequences, self._starts, tokens, strict=True):
            sequence.tokens[start + index] = token
        return tokens

    def choices(self) -> list[list[Choice]]:
        """Each sequence's choices."""
        return [[step[at] for step in self._steps[:length]] for at, length in enumerate(self.lengths)]

    def _rows_at(self, index: int) -> list[Row]:
        return [
            Row(self._rule, start + index, sequence.tokens, drafting=True)
            for sequence, start in zip(self._sequences, self._starts, strict=True)
        ]
