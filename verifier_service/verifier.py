"""Verification of a proposal: one forward, the target's choice at each row, the longest equal
prefix."""

from __future__ import annotations

from collections.abc import Sequence as TokenSequence

from slipstream.engine.job import Job, Statement
from slipstream.engine.sequence import Sequence
from slipstream.sampling.coupled import accepted_count
from slipstream.sampling.outcome import LogprobRequest, TokenDistribution, TokenLogprobs
from slipstream.sampling.row import VOID, Choice, Proposed
from slipstream.sampling.rule import SamplingRule


class VerifyJob(Job):
    """Job that checks a proposal in one forward over tail and proposal.

    It sets ``accepted_count`` and ``next_token``. Under the ratio test the proposal's tokens were
    drawn from ``distributions``. A choice then equals the proposed token exactly if the test
    accepts it. So both kinds of acceptance take the longest equal prefix.
    """

    def __init__(
        self,
        sequence: Sequence,
        statement: Statement,
        proposal: TokenSequence[int],
        rule: SamplingRule,
        distributions: TokenSequence[TokenDistribution] = (),
        logprobs: LogprobRequest | None = None,
    ) -> None:
        super().__init__(
            sequence,
            statement,
            proposal,
            rule,
            wanted=len(proposal) + 1,
            length_limit=statement.committed_length + len(proposal),
            proposed=[Proposed(*drawn) for drawn in zip(proposal, distributions, strict=bool(distributions))],
            logprobs=logprobs,
        )
        self.proposal = proposal
        self.accepted_count = 0
        self.next_token = -1
        self.margin = float("inf")
        self.logprobs: list[TokenLogprobs] = []

    def advance(self, choices: list[Choice]) -> bool:
        if choices[0].fault is not None:
            raise choices[0].fault
        self.accepted_count = accepted_count(self.proposal, [choice.token for choice in choices])
        if choices[self.accepted_count].token == VOID:  # the token before it ends the round;
            # the next round meets a fault that plain decoding would meet there
            self.accepted_count -= 1
        committed = choices[: self.accepted_count + 1]
        self.next_token = committed[-1].token
        self.margin = min([choice.margin for choice in committed])
        self.logprobs = [choice.logprobs for choice in committed if choice.logprobs is not None]
        return True
