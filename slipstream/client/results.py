"""Results of a turn: its deltas as they come, and the whole result once it has ended."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.rpc.wire import seconds
from slipstream.v1 import generation_pb2, orchestrator_pb2, sampling_pb2, turn_pb2

_ABSENT: dict[int, str] = {
    generation_pb2.Speculation.PROPOSER_DRAFT: "draft",
    generation_pb2.Speculation.PROPOSER_HEADS: "heads",
}


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a text or a conversation."""

    token_ids: tuple[int, ...]
    context_length: int
    """Most tokens of prompt and answer together."""
    token_strings: tuple[str, ...] = ()
    """Each token as the tokenizer's vocabulary spells it, if asked for."""

    @classmethod
    def from_message(cls, message: orchestrator_pb2.TokenizeResponse) -> Tokens:
        """Convert a message."""
        return cls(tuple(message.token_ids), message.context_length, tuple(message.token_strings))


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token, its log-probability under the target's own distribution, and the likeliest tokens
    with theirs."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    token_bytes: bytes = b""
    """The token's bytes, which may be a part of a character. Empty unless asked for."""
    top_bytes: tuple[bytes, ...] = ()
    """Bytes of each token in ``top``. Empty unless asked for."""

    @classmethod
    def from_message(cls, message: sampling_pb2.TokenLogprobs) -> TokenLogprobs:
        """Convert a message."""
        spelt = tuple(entry.token_bytes for entry in message.top)
        return cls(
            message.token_id,
            message.logprob,
            tuple((entry.token_id, entry.logprob) for entry in message.top),
            message.token_bytes,
            spelt if any(spelt) else (),
        )


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens as they were committed, and the text that they made certain. Either may be empty."""

    text: str
    token_ids: tuple[int, ...] = ()
    token_offset: int = 0
    """Position of the first of these tokens in the turn, counted from 0."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of ``token_ids``, if asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    token_origins: tuple[str, ...] = ()
    """Origins of ``token_ids``, if asked for. A "draft", "ngram" or "heads" token was
    proposed and accepted. A "recovered" token took a rejected one's place, a "bonus" token came
    after accepted ones, and for a "plain" one nothing was proposed."""
    token_text_byte_counts: tuple[int, ...] = ()
    """Bytes of UTF-8 in ``text`` that each of ``token_ids`` made certain, if origins are asked
    for."""
    choice_index: int = 0
    """Number of the answer that it belongs to, from 0: a request may ask for several."""

    def pieces(self) -> Iterator[tuple[str, str]]:
        """Iterate over the text in pieces, each with the origin of the token that made it
        certain. The origin is empty where it is unknown: at a turn's end, if it was not asked
        for, or from an older server."""
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
    """The result of a turn: text, tokens, usage and statistics of its rounds. Times are in
    seconds. The statistics come with the turn's end."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One for each of ``token_ids``, if asked for."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Log-probabilities of the prompt's tokens from the second on, if asked for."""
    token_text_byte_counts: list[int] = field(default_factory=list)
    """Bytes of UTF-8 in ``text`` that each of ``token_ids`` made certain, if origins are asked
    for."""
    session_id: str = ""
    """The session's id, which ``watch`` and ``cancel`` take. A single answer has one too."""
    turn: int = 0
    """Number of the turn in its session, from 1. 0 until the server has told it."""
    seed: int = 0
    finish_reason: str = ""
    """Reason of the turn's end. Empty until then, and if the turn failed."""
    stop_string: str | None = None
    """The stop string that ended the turn; None if none did."""
    weights_fingerprint: str = ""
    """Fingerprint of the target's weights, which comes with the turn's end."""
    sampling_version: int = 0
    """Version of the rules by which the target chose tokens."""
    prompt_token_count: int = 0
    cached_token_count: int = 0
    generated_token_count: int = 0
    round_count: int = 0
    draft_count: int = 0
    draft_token_count: int = 0
    accepted_token_count: int = 0
    speculative_token_count: int = 0
    """Tokens that rounds with a proposal committed, the target's own tokens included."""
    accepted_per_position: list[int] = field(default_factory=list)
    drafted_per_position: list[int] = field(default_factory=list)
    acceptance_histogram: list[int] = field(default_factory=list)
    """Element j: rounds with a proposal of which exactly j tokens were accepted."""
    ngram_token_count: int = 0
    ngram_accepted_token_count: int = 0
    prediction_token_count: int = 0
    """Draft tokens from the caller's prediction."""
    prediction_accepted_token_count: int = 0
    heads_token_count: int = 0
    """Draft tokens from heads on the target's hidden states."""
    heads_accepted_token_count: int = 0
    absent_proposer: str = ""
    """The only proposer that was asked for ("draft" or "heads"), if the server has none. A fixed
    draft length asks the draft alone."""
    draft_failure_count: int = 0
    switched_off_count: int = 0
    total_time: float = 0.0
    time_to_first_token: float = 0.0
    draft_time: float = 0.0
    verify_time: float = 0.0
    queue_time: float = 0.0
    network_time: float = 0.0
    orchestrator_time: float = 0.0
    draft_hidden_time: float = 0.0
    """Time of the draft's forwards that ran while the target verified. It is not part of the
    total."""

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of the turn's whole time."""
        return self.generated_token_count / self.total_time if self.total_time else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens as a share of the proposed ones; 0 without proposals."""
        return self.accepted_token_count / self.draft_token_count if self.draft_token_count else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Mean number of tokens that a round with a proposal committed; 1 without proposals."""
        return self.speculative_token_count / self.draft_count if self.draft_count else 1.0

    def append_delta(self, delta: Delta) -> None:
        """Append a delta."""
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.prompt_logprobs.extend(delta.prompt_logprobs)
        self.token_text_byte_counts.extend(delta.token_text_byte_counts)

    def record_end(self, end: turn_pb2.TurnFinished | turn_pb2.TurnFailed) -> None:
        """Record the usage, rounds and times that a turn's last event tells."""
        self.prompt_token_count = end.usage.prompt_token_count
        self.cached_token_count = end.usage.cached_token_count
        self.generated_token_count = end.usage.generated_token_count
        self.weights_fingerprint, self.sampling_version = end.weights_fingerprint, end.sampling_version
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
        self.acceptance_histogram = list(speculation.speculative_decoding.acceptance_histogram)
        self.ngram_token_count = speculation.ngram_token_count
        self.ngram_accepted_token_count = speculation.ngram_accepted_token_count
        self.prediction_token_count = speculation.prediction_token_count
        self.prediction_accepted_token_count = speculation.prediction_accepted_token_count
        self.heads_token_count = speculation.heads_token_count
        self.heads_accepted_token_count = speculation.heads_accepted_token_count
        self.absent_proposer = _ABSENT.get(speculation.absent_proposer, "")
        self.draft_failure_count = speculation.draft_failure_count
        self.switched_off_count = speculation.switched_off_count

    def _time(self, timing: turn_pb2.TurnTiming) -> None:
        self.total_time = seconds(timing.total)
        self.time_to_first_token = seconds(timing.time_to_first_token)
        self.draft_time = seconds(timing.draft)
        self.verify_time = seconds(timing.verify)
        self.queue_time = seconds(timing.queue)
        self.network_time = seconds(timing.network)
        self.orchestrator_time = seconds(timing.orchestrator)
        self.draft_hidden_time = seconds(timing.draft_hidden)
