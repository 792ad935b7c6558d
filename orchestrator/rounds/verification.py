"""Asking the verifiers: one round's answer, asked for again, elsewhere if need be, as long as
patience lasts.

Every request states its position, so a lost handle, a cut cache, a lost stream and a restarted
service are all mended the same way: state the position again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from orchestrator.errors import VerifierLostError
from orchestrator.peers.breaker import jittered
from orchestrator.peers.exchange import Terms, Verification
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.run_parts import Part
from orchestrator.peers.sequence import REASONS_TO_RESTATE, PeerSequence
from orchestrator.peers.verifier_run import Limits
from orchestrator.peers.verifiers import Verifiers
from orchestrator.rounds.note import ExchangeNote, RoundNote
from orchestrator.rounds.session_run import SessionRun
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.proposal import Proposal
from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import SamplingRule
from slipstream.telemetry import names

_STRANGER_REASONS = (Reason.WEIGHTS_MISMATCH, Reason.TOKENIZER_MISMATCH)
"""A verifier that came back with another model is as good as away."""

_MAX_RESTATEMENTS = 3
_LONGEST_LOADING = 1800.0
"""Seconds that a turn waits for a verifier that is there and loads its model."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


AnswerT = TypeVar("AnswerT", Verification, Part)


class VerifierSide:
    """The verifiers of one target, for all sessions."""

    def __init__(
        self, verifiers: Verifiers, target: ModelInfo, *, lease_seconds: float, patience_seconds: float
    ) -> None:
        self.verifiers = verifiers
        self._terms = Terms(target.tokenizer_fingerprint, target.weights_fingerprint, lease_seconds)
        self._patience = patience_seconds
        self.retries: Counter[str] = Counter()
        """Answers that made a request be repeated or given up, by their reason."""

    async def verify(
        self,
        sequence: PeerSequence,
        tokens: Sequence[int],
        proposal: Proposal,
        rule: SamplingRule,
        logprobs: LogprobRequest | None,
        note: RoundNote,
    ) -> Verification:
        """The answer of the session's verifier, or of another one. VerifierLostError, or a
        PeerError no retry mends."""
        exchange = note.begin_verify(names.VERIFY)

        async def verify_once() -> Verification:
            return await self._verify_once(sequence, tokens, proposal, rule, logprobs, exchange)

        return await self._persist(sequence, exchange, verify_once)

    async def next_part(
        self, own: SessionRun, tokens: Sequence[int], terms: RoundTerms, room: int, note: RoundNote
    ) -> Part:
        """Return the next tokens that the session's verifier, or another one, chooses after the
        committed ``tokens``, of which there may be ``room`` more. VerifierLostError, or a PeerError
        no retry mends."""
        exchange = note.begin_verify(names.VERIFY)

        async def take_once() -> Part:
            return await self._take_once(own, tokens, terms, room, exchange)

        return await self._persist(own.sequence, exchange, take_once)

    async def _persist(
        self, sequence: PeerSequence, exchange: ExchangeNote, ask_once: Callable[[], Awaitable[AnswerT]]
    ) -> AnswerT:
        """Ask until there is an answer, of another verifier if need be, as long as patience
        lasts."""
        started = time.monotonic()
        give_up = math.inf
        pause = _FIRST_PAUSE
        restatements = 0
        try:
            while True:
                handle = sequence.handle
                try:
                    answer = await ask_once()
                    exchange.finish(answer.timing)
                    return answer
                except PeerError as error:
                    exchange.set_back(error.reason)
                    self.retries[error.reason] += 1
                    if error.reason in REASONS_TO_RESTATE and restatements < _MAX_RESTATEMENTS:
                        restatements += 1
                        sequence.correct(handle, error.reason, error.metadata)
                        continue
                    if error.reason in REASONS_TO_RESTATE:
                        error = self.verifiers.restated_in_vain(sequence, error)
                    absent = error.code is Code.UNAVAILABLE or error.reason in _STRANGER_REASONS
                    if not absent and error.code is not Code.RESOURCE_EXHAUSTED:
                        raise
                    now = time.monotonic()
                    give_up = min(give_up, now + self._patience)  # it may have worked for long before it went away
                    if absent and self.verifiers.is_starting:  # one that comes back is not away
                        give_up = min(now + self._patience, started + _LONGEST_LOADING)
                    if now >= give_up:
                        if absent:
                            raise self._lost(error) from error
                        raise
                    if absent and self.verifiers.fail_over(sequence):
                        continue
                    if error.reason in _STRANGER_REASONS and self.verifiers.is_alone:
                        raise
                await asyncio.sleep(min(jittered(pause), give_up - now))
                pause = min(pause * 2, _LONGEST_PAUSE)
                restatements = 0
        except BaseException as error:
            exchange.fail(error)
            raise

    def home(self, sequence: PeerSequence, tokens: Sequence[int]) -> str:
        """The address of the verifier that a session with these ``tokens`` lives on; one that has
        none yet is given one."""
        return self.verifiers.verifier_of(sequence, tokens).address

    def release(self, sequence: PeerSequence) -> None:
        """Give a session's pages back."""
        self.verifiers.release(sequence)

    async def _verify_once(
        self,
        sequence: PeerSequence,
        tokens: Sequence[int],
        proposal: Proposal,
        rule: SamplingRule,
        logprobs: LogprobRequest | None,
        exchange: ExchangeNote,
    ) -> Verification:
        home = self.verifiers.verifier_of(sequence, tokens)
        exchange.address = home.address
        answer = await home.verify(
            sequence,
            self._terms,
            sequence.position(tokens),
            proposal,
            rule,
            logprobs,
            exchange.traceparent,
        )
        self.verifiers.record_success(sequence)
        sequence.learn(len(tokens) + answer.accepted_count)
        return answer

    async def _take_once(
        self, own: SessionRun, tokens: Sequence[int], terms: RoundTerms, room: int, exchange: ExchangeNote
    ) -> Part:
        home = self.verifiers.verifier_of(own.sequence, tokens)
        exchange.address = home.address
        run = own.continuing(home, len(tokens))
        if run is None:
            limits = Limits(len(tokens) + room, terms.lead)
            position = own.sequence.position(tokens)
            hinting = own.hinting(terms, home.info)
            run = home.start_run(
                own.sequence, self._terms, position, limits, terms.rule, terms.logprobs, exchange.traceparent, hinting
            )
            own.begin(home, run, tokens, limits.until_length, terms)
        part = await run.part()
        own.committed(run.length - len(part.tokens), part)
        self.verifiers.record_success(own.sequence)
        own.sequence.learn(run.length - 1)
        return part

    def _lost(self, error: PeerError) -> VerifierLostError:
        where = f"the verifier at {self.verifiers}"
        return VerifierLostError(f"{where} has been away for {self._patience:g} s: {error}")
