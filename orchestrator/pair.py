"""The pair being served: its peers once they are there, its sessions, and what a turn on it needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from opentelemetry.context import Context

from orchestrator.config import OrchestratorSettings
from orchestrator.drafting import DraftSession, DraftSide
from orchestrator.errors import NotReadyError, SessionBusyError
from orchestrator.generation import GenerationSettings, ModelLimits, ResolvedTurn, resolve
from orchestrator.peers import DraftPeer, ModelInfo, VerifierPeer
from orchestrator.rounds import Rounds
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.ngrams import SharedHistory
from orchestrator.speculation.session import SessionSpeculation
from orchestrator.store import SessionRecord, SessionStore, random_id
from orchestrator.text import Codec
from orchestrator.turns import TurnEvent, TurnRunner
from orchestrator.verifiers import Verifiers
from orchestrator.verifying import VerifierSide
from slipstream.errors import SlipstreamError, TokenizerMismatchError
from slipstream.sampling.rule import Acceptance
from slipstream.sampling.structure_compiler import StructureCompiler

log = logging.getLogger(__name__)

_EXPIRY_PERIOD_SECONDS = 1.0
_DRAFT_GRACE_SECONDS = 10.0
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Ready:
    """What is known once the verifier has been reached."""

    target: ModelInfo
    codec: Codec
    runner: TurnRunner
    compiler: StructureCompiler


class ServedPair:
    """Three phases: `connect` waits for the services, turns run, `close` gives everything back."""

    def __init__(self, settings: OrchestratorSettings, new_session_id: Callable[[], str] = random_id) -> None:
        self.knowledge = PairKnowledge(SharedHistory() if settings.share_ngrams else None)
        self.store = SessionStore(
            lambda: DraftSession(SessionSpeculation(self.knowledge)),
            max_count=settings.max_session_count,
            ttl_seconds=settings.session_ttl_seconds,
            new_id=new_session_id,
        )
        self.verifiers = Verifiers(settings.verifier_addresses)
        self.draft = DraftPeer(settings.draft) if settings.draft else None
        self._settings = settings
        self._ready: _Ready | None = None
        self._running: dict[SessionRecord, asyncio.Event] = {}
        self._background: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        """Wait for the verifier, and a little for the draft, which may also come later. Says what it waits for."""
        if self.draft is not None:
            draft = asyncio.create_task(self._connect_draft(self.draft))
            self._background.append(draft)
        target, codec = await self._reach_a_verifier()
        self.knowledge.verify.alone.profile(target.step_times)
        settings = self._settings
        verifying = VerifierSide(
            self.verifiers,
            target,
            lease_seconds=settings.lease_seconds,
            patience_seconds=settings.verifier_patience_seconds,
        )
        drafting = DraftSide(
            self.draft,
            target,
            self.knowledge,
            lease_seconds=settings.lease_seconds,
            deadline_seconds=settings.draft_deadline_seconds,
            sharpening=settings.draft_sharpening,
        )
        rounds = Rounds(verifying, drafting, target, self.knowledge)
        compiler = StructureCompiler(codec.tokenizer.to_str(), target.vocabulary_size, target.end_token_ids)
        self._ready = _Ready(target, codec, TurnRunner(rounds, target.name), compiler)
        self._background.append(asyncio.create_task(self._expire_sessions()))
        if self.draft is not None:
            await asyncio.wait([draft], timeout=_DRAFT_GRACE_SECONDS)
            if not draft.done():
                log.warning("no draft service yet: decoding plainly until it comes")
            elif (mismatch := self._mismatch()) is not None:
                log.error("%s", mismatch)

    async def close(self) -> None:
        """Cancel what still runs and give all handles back."""
        for task in self._background:
            task.cancel()
        for cancelled in self._running.values():
            cancelled.set()
        if self._ready is not None:
            for record in self.store.recent_first():
                self._ready.runner.rounds.release(record)
        await self.verifiers.close()
        if self.draft is not None:
            await self.draft.close()

    @property
    def target(self) -> ModelInfo:
        """The target model. NotReadyError before the verifier has been reached."""
        return self._require_ready().target

    @property
    def limits(self) -> ModelLimits:
        """What the pair allows. NotReadyError before the verifier has been reached."""
        target, settings = self.target, self._settings
        max_draft_length = target.max_draft_length
        if self.draft is not None and self.draft.info is not None:
            max_draft_length = min(max_draft_length, self.draft.info.max_draft_length)
        return ModelLimits(
            vocabulary_size=target.vocabulary_size,
            context_length=target.context_length,
            end_token_ids=target.end_token_ids,
            sampling_defaults=target.sampling_defaults,
            default_draft_length=settings.default_draft_length(max_draft_length),
            max_draft_length=max_draft_length,
            default_max_token_count=settings.default_max_token_count,
        )

    @property
    def codec(self) -> Codec:
        """The target's tokenizer. NotReadyError before the verifier has been reached."""
        return self._require_ready().codec

    async def check_structure(self, settings: GenerationSettings) -> None:
        """InvalidStructureError with the reason. On another thread: a large schema takes a while."""
        if settings.structure is not None:
            await asyncio.to_thread(self._require_ready().compiler.validate, settings.structure)

    def resolve(
        self, settings: GenerationSettings, prompt_length: int, *, acceptance: Acceptance | None = None
    ) -> ResolvedTurn:
        """What a turn needs, checked. ``acceptance`` is what the session has.

        InvalidFieldsError, PromptTooLongError or, for a wrong pair, TokenizerMismatchError.
        """
        resolved = resolve(settings, prompt_length, self.limits, acceptance=acceptance)
        mismatch = self._mismatch()
        if resolved.speculation.uses_draft and mismatch is not None:
            raise mismatch
        return resolved

    def create_session(self, system: str | None) -> SessionRecord:
        """A new session. SessionLimitError, or NotReadyError."""
        return self.store.create(self.codec, system)

    async def run_turn(
        self,
        record: SessionRecord,
        prompt: Sequence[int],
        resolved: ResolvedTurn,
        *,
        content: str | None,
        cancelled: asyncio.Event,
        parent: Context,
    ) -> AsyncGenerator[TurnEvent]:
        """See TurnRunner.run. Turns that run when the process drains for too long are cancelled."""
        if record in self._running:
            raise SessionBusyError(f"session {record.session.id} has a turn running", session_id=record.session.id)
        runner = self._require_ready().runner
        turn = runner.run(record, prompt, resolved, content=content, cancelled=cancelled, parent=parent)
        self._running[record] = cancelled
        self.store.touch(record)
        try:
            async with aclosing(turn) as events:
                async for event in events:
                    yield event
        finally:
            del self._running[record]
            self.store.touch(record)
            if record.deleted:
                self.release(record)

    def delete_session(self, session_id: str) -> None:
        """Take a session out, cancel its turn, give its pages back. SessionNotFoundError or SessionExpiredError."""
        record = self.store.delete(session_id)
        record.deleted = True
        if record in self._running:
            self._running[record].set()  # the turn releases the pages when it has ended
        else:
            self.release(record)

    def release(self, record: SessionRecord) -> None:
        """Give a session's pages back on both services."""
        self._require_ready().runner.rounds.release(record)

    def _require_ready(self) -> _Ready:
        if self._ready is None:
            raise NotReadyError(f"still waiting for the verifier service at {self.verifiers}")
        return self._ready

    def _mismatch(self) -> TokenizerMismatchError | None:
        if self.draft is None or self.draft.info is None:
            return None
        own, other = self.target.tokenizer_fingerprint, self.draft.info.tokenizer_fingerprint
        if own == other:
            return None
        return TokenizerMismatchError(
            f"the draft {self.draft.info.name} has tokenizer {other}, but the target {self.target.name} has {own}; "
            "start a draft with the target's tokenizer, or ask for speculation off",
            draft=other,
            target=own,
        )

    async def _reach_a_verifier(self) -> tuple[ModelInfo, Codec]:
        """The first verifier to answer says what the target is; the others may share its sessions once they are there."""
        reached = {asyncio.create_task(self._reach(peer)): peer for peer in self.verifiers.peers}
        done, _ = await asyncio.wait(reached, return_when=asyncio.FIRST_COMPLETED)
        first = done.pop()
        target, codec = first.result()
        self.verifiers.admit(reached[first])
        for task, peer in reached.items():
            if task is not first:
                self._background.append(asyncio.create_task(self._compare(task, peer, target)))
        return target, codec

    async def _reach(self, peer: VerifierPeer) -> tuple[ModelInfo, Codec]:
        while True:
            try:
                return await peer.wait_until_serving(), await peer.fetch_codec()
            except SlipstreamError as error:  # it went away again between two of our questions
                log.warning("the verifier service at %s: %s", peer.address, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _compare(
        self, reached: asyncio.Task[tuple[ModelInfo, Codec]], peer: VerifierPeer, target: ModelInfo
    ) -> None:
        await reached
        if self.verifiers.fits(peer, target):
            self.verifiers.admit(peer)
        else:
            log.error("the verifier at %s hosts something else than %s and is not used", peer.address, target.name)

    async def _connect_draft(self, draft: DraftPeer) -> None:
        while True:
            try:
                await draft.wait_until_serving()
                return
            except SlipstreamError as error:
                log.warning("the draft service at %s: %s", draft.address, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _expire_sessions(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_PERIOD_SECONDS)
            for record in self.store.expire():
                log.info("session %s expired", record.session.id)
                self.release(record)
