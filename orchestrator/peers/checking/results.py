"""Check a peer's answer to an item against what it was asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from google.rpc import status_pb2

from orchestrator.peers.checking.bounds import (
    check_all_within,
    check_count,
    check_seconds,
    check_tokens,
    check_within,
)
from orchestrator.peers.checking.errors import OF_THE_ITEM, checked_error
from orchestrator.peers.checking.faults import PeerFaultError
from orchestrator.peers.checking.steps import check_steps
from slipstream.rpc.sampling_wire import distribution_of
from slipstream.rpc.status import PeerError
from slipstream.sampling.outcome import LogprobRequest, distribution_fault
from slipstream.sampling.rule import SamplingRule
from slipstream.v1 import sampling_pb2
from slipstream.wire.v1 import draft_pb2, model_pb2, verifier_pb2

_MOST_LOGPROB = 0.01
"""A log-probability is at most 0, but for rounding."""
_MOST_CONFIDENCE = 1.0
"""A draft's is only near enough: see `slipstream.sampling.kernel`."""
_LEAST_LOGPROB = -1e9
_LEAST_MARGIN = -1.0
_CLOCK_FACTOR, _CLOCK_SECONDS = 1.5, 5.0
"""A service's clock may run a little faster than this process's: what it says an item took is at
most so many times what the item took here, and so much more."""
_MOST_STEPS = 2**20
_RUN_ENDS = tuple(verifier_pb2.RunEnd.values())


def most_seconds(round_trip: float) -> float:
    """Return the longest time that a service may report for an item that took ``round_trip``
    seconds here."""
    return _CLOCK_FACTOR * round_trip + _CLOCK_SECONDS


def check_timing(timing: model_pb2.ItemTiming, round_trip: float) -> None:
    """PeerFaultError if an item that took ``round_trip`` seconds here cannot have taken that
    there."""
    most = most_seconds(round_trip)
    check_seconds("timing.queue", timing.queue, most)
    check_seconds("timing.forward", timing.forward, most)
    check_seconds("timing.total", timing.total, most)
    check_seconds("timing.prefill", timing.prefill, most)
    check_within("timing.forward_count", timing.forward_count, 0, _MOST_STEPS)
    check_within("timing.step_token_count", timing.step_token_count, 0, _MOST_STEPS)


@dataclass(frozen=True, slots=True)
class ProposalCheck:
    """Checks the result of one request to a draft."""

    draft_length: int
    vocabulary_size: int
    """Number of the draft's tokens."""
    rule: SamplingRule

    def check(self, result: draft_pb2.ProposeResult, round_trip: float) -> None:
        """PeerFaultError if a draft cannot answer that."""
        check_count("tokens", result.tokens, self.draft_length)
        check_tokens("tokens", result.tokens, self.vocabulary_size)
        self._check_distributions(result)
        check_timing(result.timing, round_trip)

    def _check_distributions(self, result: draft_pb2.ProposeResult) -> None:
        count = len(result.tokens) if self.rule.draws_ratios else 0
        check_count("distributions", result.distributions, count, count)
        for token, message in zip(result.tokens, result.distributions, strict=True) if count else ():
            check_count("distributions.token_ids", message.token_ids, self.rule.proposal_top_k, 1)
            check_count("distributions.probabilities", message.probabilities, self.rule.proposal_top_k, 1)
            fault = distribution_fault(token, distribution_of(message), self.vocabulary_size)
            if fault is not None:
                raise PeerFaultError("distributions", fault)


@dataclass(frozen=True, slots=True)
class VerificationCheck:
    """Checks the result of one verification."""

    tail: Sequence[int]
    proposal: Sequence[int]
    vocabulary_size: int
    """Number of the target's tokens."""
    rule: SamplingRule
    logprobs: LogprobRequest | None

    def check(self, result: verifier_pb2.VerifyResult, round_trip: float) -> None:
        """Raise PeerFaultError if a verifier cannot give this answer."""
        check_within("accepted_count", result.accepted_count, 0, len(self.proposal))
        check_within("next_token", result.next_token, 0, self.vocabulary_size - 1)
        check_within("prefilled_count", result.prefilled_count, 0, len(self.tail))
        check_within("margin", result.margin, _LEAST_MARGIN, math.inf)
        check_timing(result.timing, round_trip)
        chosen, scored = (), ()  # type: tuple[int, ...], tuple[int, ...]
        if self.logprobs is not None:
            chosen = (*self.proposal[: result.accepted_count], result.next_token)
            scored = tuple(self.tail[1:]) if self.logprobs.prompt else ()
        logprobs = _LogprobCheck(self.logprobs, self.vocabulary_size)
        logprobs.check("logprobs", result.logprobs, chosen)
        logprobs.check("tail_logprobs", result.tail_logprobs, scored)

    def error(self, result: verifier_pb2.VerifyResult) -> PeerError:
        """Return the error of a result that has one. PeerFaultError if a verifier cannot refuse the
        item that way."""
        return _target_error(result.error, self.rule)


@dataclass(slots=True)
class RunCheck:
    """Checks the results of one run, in their order."""

    length: int
    """The sequence's length up to the last result."""
    until_length: int
    tail: Sequence[int]
    vocabulary_size: int
    """Number of the target's tokens."""
    rule: SamplingRule
    logprobs: LogprobRequest | None
    is_first: bool = True

    def check(self, result: verifier_pb2.RunResult, elapsed: float) -> None:
        """Raise PeerFaultError if a verifier cannot give this result of a run that has begun
        ``elapsed`` seconds ago."""
        check_within("position", result.position, self.length, self.length)
        if result.end not in _RUN_ENDS:
            raise PeerFaultError("end", f"must be one of {_RUN_ENDS}")
        check_count(
            "tokens", result.tokens, self.until_length - self.length, result.end == verifier_pb2.RUN_END_UNSPECIFIED
        )
        check_tokens("tokens", result.tokens, self.vocabulary_size)
        self._check_end(result)
        check_within("prefilled_count", result.prefilled_count, 0, len(self.tail))
        if result.tokens:
            check_within("margin", result.margin, _LEAST_MARGIN, math.inf)
        check_timing(result.timing, elapsed)
        check_steps(result, most_seconds(elapsed))
        self._check_logprobs(result)
        self.length += len(result.tokens)
        self.is_first = self.is_first and not result.tokens

    def _check_logprobs(self, result: verifier_pb2.RunResult) -> None:
        if self.logprobs is None:
            check_count("logprobs", result.logprobs, 0)
            check_count("tail_logprobs", result.tail_logprobs, 0)
            return
        scores_tail = self.is_first and self.logprobs.prompt and result.tokens
        logprobs = _LogprobCheck(self.logprobs, self.vocabulary_size)
        logprobs.check("logprobs", result.logprobs, result.tokens)
        logprobs.check("tail_logprobs", result.tail_logprobs, self.tail[1:] if scores_tail else ())

    def error(self, result: verifier_pb2.RunResult) -> PeerError:
        """Return the error of a result that has one. PeerFaultError if a verifier cannot refuse the
        run that way."""
        return _target_error(result.error, self.rule)

    def _check_end(self, result: verifier_pb2.RunResult) -> None:
        if len(result.tokens) > 1 and any(token in self.rule.ends for token in result.tokens[:-1]):
            raise PeerFaultError("tokens", "must have no token after an end token")
        ends = bool(result.tokens) and result.tokens[-1] in self.rule.ends
        if ends != (result.end == verifier_pb2.RUN_END_TOKEN):
            raise PeerFaultError("end", "must be TOKEN exactly after an end token")
        is_short = self.length + len(result.tokens) < self.until_length
        if result.end == verifier_pb2.RUN_END_UNTIL and is_short:
            raise PeerFaultError("end", "must not be UNTIL before until_length")


@dataclass(frozen=True, slots=True)
class _LogprobCheck:
    """Checks the log-probabilities of tokens."""

    asked: LogprobRequest | None
    vocabulary_size: int

    def check(self, field: str, entries: Sequence[sampling_pb2.TokenLogprobs], tokens: Sequence[int]) -> None:
        check_count(field, entries, len(tokens), len(tokens))
        most = 0 if self.asked is None else self.asked.top_count
        for entry, token in zip(entries, tokens, strict=True):
            if entry.token_id != token:
                raise PeerFaultError(f"{field}.token_id", "must be the token that was chosen, or that the tail has")
            check_within(f"{field}.logprob", entry.logprob, -math.inf, _MOST_LOGPROB)
            check_count(f"{field}.top", entry.top, most, min(most, self.vocabulary_size))
            check_tokens(f"{field}.top.token_id", [each.token_id for each in entry.top], self.vocabulary_size)
            check_all_within(f"{field}.top.logprob", [each.logprob for each in entry.top], -math.inf, _MOST_LOGPROB)


def _target_error(status: status_pb2.Status, rule: SamplingRule) -> PeerError:
    """Return the error that a verifier gives. PeerFaultError if it cannot refuse an item that
    way."""
    error = checked_error(status)
    if error.reason in OF_THE_ITEM:
        raise PeerFaultError("error.reason", f"must not be {error.reason} for an item that is right: {error}")
    if rule.structure is None and "STRUCTURE" in error.reason:
        raise PeerFaultError("error.reason", f"must not be {error.reason} where no structure is asked for")
    return error
