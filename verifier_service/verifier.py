"""Verification: one forward over tail and proposal, the target's own choice at each row, the longest equal prefix."""

from __future__ import annotations

from collections.abc import Sequence as TokenSequence

from slipstream.engine.job import Job, Statement
from slipstream.engine.sequence import Sequence
from slipstream.sampling.coupled import Choice, accepted_count
from slipstream.sampling.rule import SamplingRule


class VerifyJob(Job):
    """Checks a proposal in one run over tail and proposal; then ``accepted_count`` and ``next_token`` are set."""

    def __init__(
        self, sequence: Sequence, statement: Statement, proposal: TokenSequence[int], rule: SamplingRule
    ) -> None:
        super().__init__(
            sequence,
            statement,
            proposal,
            rule,
            wanted=len(proposal) + 1,
            length_limit=statement.committed_length + len(proposal),
        )
        self.proposal = proposal
        self.accepted_count = 0
        self.next_token = -1
        self.margin = float("inf")

    def advance(self, choices: list[Choice]) -> bool:
        self.accepted_count = accepted_count(self.proposal, [choice.token for choice in choices])
        self.next_token = choices[self.accepted_count].token
        self.margin = min(choice.margin for choice in choices[: self.accepted_count + 1])
        return True
