"""Jobs that propose tokens: the draft's own choices, or its draws under the ratio test.

If a proposal is in flight, one forward over it finds the likeliest outcomes of its verification.
Each outcome is then continued on a fork of the sequence, all forks in one batch::

    tail, in_flight  --one forward-->  candidates at every row
    candidates       --rank-->         outcome 1: fork, next_token, draft_length tokens
                                       outcome 2: fork, next_token, draft_length tokens
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass

from draft_service.outcomes import Outcome, likeliest_outcomes
from slipstream.engine.job import Fork, Job, Statement
from slipstream.engine.sequence import Sequence
from slipstream.sampling.row import VOID, Choice
from slipstream.sampling.rule import SamplingRule

CANDIDATE_COUNT = 8
"""Next tokens that are considered for each number of accepted tokens."""


@dataclass(frozen=True, slots=True)
class Branch:
    """The draft's choices after one outcome of the verification; ``outcome`` is None if no proposal
    is in flight."""

    outcome: Outcome | None
    choices: list[Choice]


class _Drafting(Job):
    """Job that chooses up to ``draft_length`` tokens, one by one, until an end token.

    The last token is never appended to the sequence.
    """

    drafting = True

    def __init__(
        self,
        sequence: Sequence,
        statement: Statement,
        uncommitted: TokenSequence[int],
        rule: SamplingRule,
        draft_length: int,
        *,
        wanted: int = 1,
        length_limit: int,
    ) -> None:
        super().__init__(sequence, statement, uncommitted, rule, wanted=wanted, length_limit=length_limit)
        self.draft_length = draft_length
        self.drawn: list[Choice] = []
        if wanted == 1 and rule.structure is None:
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


class BranchJob(_Drafting):
    """Job that continues one outcome on a fork of the sequence with the tokens in flight."""

    def __init__(self, parent: ProposeJob, outcome: Outcome, fork: Fork) -> None:
        length = parent.committed_length + outcome.accepted_count
        super().__init__(
            fork(f"{outcome.accepted_count}/{outcome.next_token}", length),
            Statement(length, [outcome.next_token]),
            [],
            parent.rule,
            parent.draft_length,
            length_limit=length + parent.draft_length,
        )
        self.committed_length = parent.committed_length  # tokens in flight and the outcome are guesses
        self.outcome = outcome

    @property
    def branch(self) -> Branch:
        """Return the tokens that this job has drafted."""
        return Branch(self.outcome, self.drawn)


class ProposeJob(_Drafting):
    """Job of one item: one proposal, or up to ``branch_count`` branches if a proposal is in flight.

    Under the ratio test a row's only candidate is the draft's own draw.
    """

    def __init__(
        self,
        sequence: Sequence,
        statement: Statement,
        in_flight: TokenSequence[int],
        draft_length: int,
        branch_count: int,
        rule: SamplingRule,
    ) -> None:
        # A fork holds the tokens in flight, the next token, and all but the last of its own tokens.
        longest = len(in_flight) + bool(in_flight) + draft_length - 1
        super().__init__(
            sequence,
            statement,
            in_flight,
            rule,
            draft_length,
            wanted=len(in_flight) + 1,
            length_limit=statement.committed_length + longest,
        )
        self.in_flight = in_flight
        self.branch_count = branch_count
        self.candidate_count = CANDIDATE_COUNT if in_flight else 0
        self.parts: list[BranchJob] = []
        self._outcomes: list[Outcome] = []

    def advance(self, choices: list[Choice]) -> bool:
        if not self.in_flight:
            return super().advance(choices)
        if choices[0].fault is not None:
            raise choices[0].fault
        fitting = list(itertools.takewhile(lambda choice: choice.token != VOID, choices))
        candidates = [choice.candidates or ((choice.token, 0.0),) for choice in fitting]
        ends = self.rule.ends
        if self.in_flight[-1] in ends:
            del candidates[len(self.in_flight) :]
        outcomes = likeliest_outcomes(self.in_flight, candidates, self.branch_count + len(ends))
        # Nothing follows an end token.
        self._outcomes = [outcome for outcome in outcomes if outcome.next_token not in ends][: self.branch_count]
        return True

    def split(self, fork: Fork) -> list[Job]:
        self.parts = [BranchJob(self, outcome, fork) for outcome in self._outcomes]
        return [*self.parts]

    @property
    def branches(self) -> list[Branch]:
        """Return the branches, likeliest first; without tokens in flight, the one proposal."""
        if not self.in_flight:
            return [Branch(None, self.drawn)]
        return [part.branch for part in self.parts if part.drawn]
