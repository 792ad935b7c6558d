"""Proposing: the draft's own choices, or under the ratio test its draws, token after token.

With a proposal in flight one forward over it names the likeliest outcomes of its verification; each
is then continued on a fork of the sequence, all forks in one batch::

    tail, in_flight  --one forward-->  candidates at every row  --rank-->  outcome 1: fork, next_token, draft_length tokens
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
"""How many next tokens are considered after each count of accepted ones."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A continuation for one outcome of the in-flight verification, None if nothing is in flight:
    the draft's choices."""

    outcome: Outcome | None
    choices: list[Choice]


class _Drafting(Job):
    """Chooses ``draft_length`` tokens one after another, fewer if one is an end token. The last is
    never appended."""

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
        if choice.token == VOID:  # nothing can be said here: what is drafted so far stands
            if choice.fault is not None and not self.drawn:
                raise choice.fault
            return True
        self.drawn.append(choice)
        self.pending = [choice.token]
        if self.rule.structure is None:
            self.steps_left = self.draft_length - len(self.drawn)
        # Nothing follows an end token: what the draft said after it would be wasted.
        return len(self.drawn) == self.draft_length or choice.token in self.rule.ends


class BranchJob(_Drafting):
    """Continues one outcome on a fork of the sequence that holds all that is in flight."""

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
        self.committed_length = parent.committed_length  # what is in flight, and the outcome, are guesses
        self.outcome = outcome

    @property
    def branch(self) -> Branch:
        """What this job has drafted."""
        return Branch(self.outcome, self.drawn)


class ProposeJob(_Drafting):
    """One item: a plain proposal, or with a proposal in flight up to ``branch_count`` branches.

    Under the ratio test a row's one candidate is the draft's own draw.
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
        # Forks hold at most what is in flight, its next token, and all but the last of their own.
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
        # After an end token comes nothing.
        self._outcomes = [outcome for outcome in outcomes if outcome.next_token not in ends][: self.branch_count]
        return True

    def split(self, fork: Fork) -> list[Job]:
        self.parts = [BranchJob(self, outcome, fork) for outcome in self._outcomes]
        return [*self.parts]

    @property
    def branches(self) -> list[Branch]:
        """All there is to answer, likeliest outcome first; for a plain proposal, the proposal."""
        if not self.in_flight:
            return [Branch(None, self.drawn)]
        return [part.branch for part in self.parts if part.drawn]
