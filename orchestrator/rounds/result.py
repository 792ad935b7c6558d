"""The result of a round."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from orchestrator.peers.exchange import PeerTiming, Work
from orchestrator.speculation.proposal import Source
from slipstream.sampling.outcome import TokenLogprobs


class Origin(Enum):
    """The way in which a token came about."""

    DRAFT = "draft"
    NGRAM = "ngram"
    PREDICTION = "prediction"
    HEADS = "heads"
    OTHER = "other"
    """All five proposed, and accepted."""
    RECOVERED = "recovered"
    BONUS = "bonus"
    PLAIN = "plain"
    """All three the target's own."""


class RoundResult(NamedTuple):
    """The result of one round: the answer to one proposal, or the choices of a step of a run.

    ``tokens`` are ready to commit: the accepted ones, and the target's own. A stretch without hints
    may have several of these. ``proposal_length`` tokens of ``source`` were verified.

    ``waited`` is how long it waited for its proposal, in seconds, and ``awaited`` the timing of the
    request it waited for. ``switched_off`` says that the session's proposers rest from here on.
    ``drafted`` are the timings of all requests to the draft that were answered since the last
    round.
    """

    tokens: tuple[int, ...]
    proposal_length: int
    source: Source | None
    accepted_count: int
    prefilled_count: int
    verify: PeerTiming
    waited: float
    awaited: PeerTiming | None
    drafted: list[PeerTiming]
    draft_failed: bool
    switched_off: bool
    margin: float
    """The least lead, over the round's tokens, of the token chosen over the next best, in perturbed
    logits."""
    logprobs: tuple[TokenLogprobs, ...]
    """One for each of ``tokens``, if asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...]
    """Of the prompt's tokens from the second on, if asked for."""
    works: Sequence[Work] = ()
    """Work of the draft on hints, and its failures, since the last round."""
    moments: tuple[float, float] | None = None
    """When a run's step began and ended, by the monotonic clock; None for a round that was asked
    for."""
    draft: str = ""
    """Fingerprint of the weights of the session's draft; empty if it has none."""

    @property
    def next_token_kind(self) -> str:
        """The kind of the last token: recovered after a rejection, bonus after a whole proposal,
        plain without one."""
        drafted = self.proposal_length
        return "recovered" if self.accepted_count < drafted else "bonus" if drafted else "plain"

    @property
    def origins(self) -> list[Origin]:
        """The origin of each of ``tokens``."""
        own = [Origin(self.next_token_kind)] * (len(self.tokens) - self.accepted_count)
        return own if self.source is None else [Origin(self.source.value)] * self.accepted_count + own

    def counted(self, committed: int) -> tuple[int, int]:
        """Return the draft tokens verified and accepted, if the turn took so many of ``tokens``.
        Those after its end count as neither."""
        if self.proposal_length and committed <= self.accepted_count:
            return committed, committed
        return self.proposal_length, self.accepted_count

    @property
    def maker(self) -> str:
        """The draft that made the tokens that were verified, by its fingerprint; or the name of
        another source."""
        return self.draft if self.source is Source.DRAFT and self.draft else self.rung

    @property
    def rung(self) -> str:
        """The maker of the tokens that were verified: draft, ngram, prediction, heads or other;
        plain if there were none."""
        return "plain" if self.source is None else self.source.value
