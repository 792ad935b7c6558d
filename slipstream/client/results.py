"""What comes of a turn: its deltas as they come, and the result when it has ended."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.rpc.wire import seconds
from slipstream.v1 import sampling_pb2, turn_pb2


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token, its log-probability under the target's own distribution, and the likeliest tokens
    with theirs."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, message: sampling_pb2.TokenLogprobs) -> TokenLogprobs:
        """From the wire."""
        return cls(message.token_id, message.logprob, tuple((entry.token_id, entry.logprob) for entry in message.top))


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens as they were committed, and the text that they made certain; either may be empty."""

    text: str
    token_ids: tuple[int, ...] = ()
    token_offset: int = 0
    """How many tokens of the turn came before these."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of ``token_ids``, if asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    token_origins: tuple[str, ...] = ()
    """One for each of ``token_ids``, if asked for: how it came about. "draft" and "ngram" were
    proposed and accepted, "recovered" took a rejected one's place, "bonus" came on top of accepted
    ones, "plain" where none was proposed."""
    token_text_byte_counts: tuple[int, ...] = ()
    """Likewise: bytes of UTF-8 in ``text`` that each made certain."""

    def pieces(self) -> Iterator[tuple[str, str]]:
        """The text in pieces, each with the origin of the token that made it certain. The origin is
        empty where nobody says: at a turn's end, where it was not asked for, or from an older
        server."""
        counts, encoded = self.token_text_byte_counts, self.text.encode()
        if len(counts) != len(self.token_origins) or sum(counts) != len(encoded) or min(counts, default=0) < 0:
            if self.text:
                yield self.text, ""
            return
        decoder, at = codecs.getincrementaldecoder("utf-8")(), 0
        for origin, count in zip(self.token_origins, counts, strict=True):
            text = decoder.decode(encoded[at : at + count])  # a character in two parts is whole with the later token
            at += count
            if text:
                yield text, origin


@dataclass(slots=True)
class Result:
    """A turn: its text and tokens, what it used and how its rounds went. Times in seconds.
    Statistics come with its end."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One for each of ``token_ids``, if asked for."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the prompt's tokens from the second on, if asked for."""
    session_id: str = ""
    """``watch`` and ``cancel`` take it, for single answers too."""
    turn: int = 0
    """Counts the session's turns from 1; 0 until the server has told."""
    seed: int = 0
    finish_reason: str = ""
    """Empty until the turn has ended, and where it failed."""
    prompt_token_count: int = 0
    cached_token_count: int = 0
    generated_token_count: int = 0
    round_count: int = 0
    draft_count: int = 0
    draft_token_count: int = 0
    accepted_token_count: int = 0
    speculative_token_count: int = 0
    """Committed by rounds with a proposal, the target's own tokens included."""
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_per_position: list[int] = field(default_factory=list)
    ngram_token_count: int = 0
    ngram_accepted_token_count: int = 0
    draft_failure_count: int = 0
    overlap_counts: dict[str, int] = field(default_factory=dict)
    """Rounds with the draft, by what it did meanwhile: none, enumerate, run_ahead."""
    switched_off_count: int = 0
    hit_count: int = 0
    miss_count: int = 0
    total_time: float = 0.0
    time_to_first_token: float = 0.0
    draft_time: float = 0.0
    verify_time: float = 0.0
    queue_time: float = 0.0
    network_time: float = 0.0
    orchestrator_time: float = 0.0
    draft_hidden_time: float = 0.0
    """The draft's forwards that went on while the target verified: not part of the total."""

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over the turn's whole time."""
        return self.generated_token_count / self.total_time if self.total_time else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over proposed draft tokens; 0 without proposals."""
        return self.accepted_token_count / self.draft_token_count if self.draft_token_count else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a round with a proposal committed, on average; 1 without proposals."""
        return self.speculative_token_count / self.draft_count if self.draft_count else 1.0

    def add(self, delta: Delta) -> None:
        """Take a delta in."""
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.prompt_logprobs.extend(delta.prompt_logprobs)

    def account(self, end: turn_pb2.TurnFinished | turn_pb2.TurnFailed) -> None:
        """Take in what a turn's last event says of usage, rounds and times."""
        self.prompt_token_count = end.usage.prompt_token_count
        self.cached_token_count = end.usage.cached_token_count
        self.generated_token_count = end.usage.generated_token_count
        self._count(end.speculation)
        self._time(end.timing)

    def _count(self, speculation: turn_pb2.SpeculationStatistics) -> None:
        self.round_count = speculation.round_count
        self.draft_count = speculation.draft_count
        self.draft_token_count = speculation.draft_token_count
        self.accepted_token_count = speculation.accepted_token_count
        before = speculation.accepted_token_count + speculation.draft_count  # an older server does not tell
        self.speculative_token_count = speculation.speculative_token_count or before
        self.accepted_per_position = list(speculation.accepted_per_position_counts)
        self.drafted_per_position = list(speculation.drafted_per_position_counts)
        self.ngram_token_count = speculation.ngram_token_count
        self.ngram_accepted_token_count = speculation.ngram_accepted_token_count
        self.draft_failure_count = speculation.draft_failure_count
        self.overlap_counts = {
            "none": speculation.synchronous_round_count,
            "enumerate": speculation.enumerated_round_count,
            "run_ahead": speculation.run_ahead_round_count,
        }
        self.switched_off_count = speculation.switched_off_count
        self.hit_count = speculation.hit_count
        self.miss_count = speculation.miss_count

    def _time(self, timing: turn_pb2.TurnTiming) -> None:
        self.total_time = seconds(timing.total)
        self.time_to_first_token = seconds(timing.time_to_first_token)
        self.draft_time = seconds(timing.draft)
        self.verify_time = seconds(timing.verify)
        self.queue_time = seconds(timing.queue)
        self.network_time = seconds(timing.network)
        self.orchestrator_time = seconds(timing.orchestrator)
        self.draft_hidden_time = seconds(timing.draft_hidden)
