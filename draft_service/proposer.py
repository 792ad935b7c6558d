"""Jobs that propose tokens: the draft's own choices, or its draws under the ratio test."""

from __future__ import annotations

from slipstream.engine.job import Job, Statement
from slipstream.engine.sequence import Sequence
from slipstream.sampling.row import VOID, Choice
from slipstream.sampling.rule import SamplingRule


class ProposeJob(Job):
    """Job of one item. It chooses up to ``draft_length`` tokens, one by one, until an end token.

    The last token is never appended to the sequence.
    """

    drafting = True

    def __init__(self, sequence: Sequence, statement: Statement, draft_length: int, rule: SamplingRule) -> None:
        super().__init__(
            sequence, statement, (), rule, wanted=1, length_limit=statement.committed_length + draft_length - 1
        )
        self.draft_length = draft_length
        self.drawn: list[Choice] = []
        if rule.structure is None:
            self.steps_left = draft_length

    def advance(self, choices: list[Choice]) -> bool:
        choice = choices[-1]
        if choice.token == VOID:  # no token is possible here: the tokens so far are the proposal
            if choice.fault is not None and not self.drawn:
                raise choice.fault
            return True
        self.drawn.append(choice)
        self.pending = [choice.token]
        if self.rule.structure is None:
            self.steps_left = self.draft_length - len(self.drawn)
        # Nothing follows an end token.
        return len(self.drawn) == self.draft_length or choice.token in self.rule.ends
