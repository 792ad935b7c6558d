"""Proposing: the draft's own choices, or under the ratio test its draws, token after token."""

from __future__ import annotations

from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass

from slipstream.engine.job import Job, Statement
from slipstream.engine.sequence import Sequence
from slipstream.sampling.outcome import TokenDistribution
from slipstream.sampling.row import VOID, Choice
from slipstream.sampling.rule import SamplingRule


@dataclass(frozen=True, slots=True)
class Branch:
    """A continuation for one outcome of the in-flight verification; ``next_token`` is None if nothing is in flight.

    Under the ratio test ``distributions`` are what the tokens were drawn from.
    """

    accepted_count: int
    next_token: int | None
    tokens: tuple[int, ...]
    distributions: tuple[TokenDistribution, ...]


class ProposeJob(Job):
    """Chooses ``draft_length`` tokens one after another, fewer if one is an end token.

    With a proposal in flight the draft assumes that all of it is accepted: the first token it then chooses is the
    outcome's ``next_token``, and ``draft_length`` more follow.
    """

    drafting = True

    def __init__(
        self,
        sequence: Sequence,
        statement: Statement,
        in_flight: TokenSequence[int],
        draft_length: int,
        rule: SamplingRule,
    ) -> None:
        token_count = draft_length + bool(in_flight)
        super().__init__(
            sequence,
            statement,
            in_flight,
            rule,
            wanted=1,
            # The last token is chosen, never appended.
            length_limit=statement.committed_length + len(in_flight) + token_count - 1,
        )
        self._in_flight_count = len(in_flight)
        self._token_count = token_count
        self._drawn: list[Choice] = []

    def advance(self, choices: list[Choice]) -> bool:
        token = choices[-1].token
        if token == VOID:  # what is in flight breaks the structure: no outcome of it can be continued
            return True
        self._drawn.append(choices[-1])
        self.pending = [token]
        # Nothing follows an end token: what the draft said after it would be wasted.
        return len(self._drawn) == self._token_count or token in self.rule.end_token_ids

    @property
    def branches(self) -> list[Branch]:
        """The likeliest outcome's continuation; for a plain proposal, the proposal."""
        if self._in_flight_count == 0:
            return [_branch(0, None, self._drawn)]
        if not self._drawn:
            return []
        return [_branch(self._in_flight_count, self._drawn[0].token, self._drawn[1:])]


def _branch(accepted_count: int, next_token: int | None, drawn: list[Choice]) -> Branch:
    return Branch(
        accepted_count,
        next_token,
        tuple(choice.token for choice in drawn),
        tuple(choice.distribution for choice in drawn if choice.distribution is not None),
    )
