"""Reaching the peers: the verifiers, at least one of which says what the target is, and the draft, which may come later."""

from __future__ import annotations

import asyncio
import logging

from orchestrator.peers.draft_peer import DraftPeer
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.model_peer import PeerStatus
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifiers import Verifiers
from orchestrator.processes.learnt import LearntFile
from orchestrator.processes.settings import OrchestratorSettings
from orchestrator.rounds.drafting import DraftSide
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.verification import VerifierSide
from orchestrator.sessions.pair import Pair
from orchestrator.sessions.text import Codec
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.ngrams import SharedHistory
from slipstream.errors import SlipstreamError
from slipstream.sampling.structure_compiler import StructureCompiler

log = logging.getLogger(__name__)

_DRAFT_GRACE_SECONDS = 10.0
_RETRY_SECONDS = 1.0


class Peers:
    """The services that an orchestrator asks: `connect` waits for them, `close` gives up their channels."""

    def __init__(self, settings: OrchestratorSettings) -> None:
        self.verifiers = Verifiers([VerifierPeer(address) for address in settings.verifier_addresses])
        self.draft = DraftPeer(settings.draft) if settings.draft else None
        self.verifying: VerifierSide | None = None
        self.drafting: DraftSide | None = None
        """Both once there is a pair."""
        self._settings = settings
        self._knowledge = PairKnowledge(SharedHistory() if settings.share_ngrams else None)

    def __str__(self) -> str:
        return str(self.verifiers)

    @property
    def reachable(self) -> tuple[bool, bool]:
        """Whether a verifier, and whether the draft, can be reached just now."""
        return self.verifiers.reachable, self.draft is not None and self.draft.reachable

    async def statuses(self) -> list[PeerStatus]:
        """How each of them is, asked now."""
        known: list[VerifierPeer | DraftPeer] = [*self.verifiers.peers]
        if self.draft is not None:
            known.append(self.draft)
        return list(await asyncio.gather(*(peer.status() for peer in known)))

    async def connect(self, tasks: asyncio.TaskGroup) -> Pair:
        """Wait for a verifier, and a little for the draft. Says what it waits for. ``tasks`` wait for the others."""
        draft = None if self.draft is None else tasks.create_task(_reach(self.draft))
        target, codec = await self._reach_a_verifier(tasks)
        pair = self._pair(target, codec)
        if draft is not None:
            await asyncio.wait([draft], timeout=_DRAFT_GRACE_SECONDS)
            if not draft.done():
                log.warning("no draft service yet: decoding plainly until it comes")
            elif (mismatch := pair.mismatch) is not None:
                log.error("%s", mismatch)
        self._go_on_learning(target, tasks)
        return pair

    def _go_on_learning(self, target: ModelInfo, tasks: asyncio.TaskGroup) -> None:
        directory = self._settings.learnt_path
        if directory is not None:
            learnt = LearntFile(directory, target, None if self.draft is None else self.draft.info)
            learnt.load(self._knowledge)
            tasks.create_task(learnt.keep(self._knowledge))

    async def close(self) -> None:
        """Give back what has been given up, then close the channels."""
        await self.verifiers.close()
        if self.draft is not None:
            await self.draft.close()

    def _pair(self, target: ModelInfo, codec: Codec) -> Pair:
        settings = self._settings
        knowledge = self._knowledge
        self.verifying = verifying = VerifierSide(
            self.verifiers,
            target,
            lease_seconds=settings.lease_seconds,
            patience_seconds=settings.verifier_patience_seconds,
        )
        self.drafting = drafting = DraftSide(
            self.draft,
            target,
            knowledge,
            lease_seconds=settings.lease_seconds,
            deadline_seconds=settings.draft_deadline_seconds,
            sharpening=settings.draft_sharpening,
        )
        return Pair(
            target,
            self.draft,
            codec,
            Rounds(verifying, drafting, target, knowledge),
            StructureCompiler(codec.tokenizer.to_str(), target.vocabulary_size, target.end_token_ids),
            settings.draft_length,
            settings.default_max_token_count,
        )

    async def _reach_a_verifier(self, tasks: asyncio.TaskGroup) -> tuple[ModelInfo, Codec]:
        """The first verifier to answer says what the target is; the others may share its sessions once they are there."""
        reached = {tasks.create_task(_reach_with_codec(peer)): peer for peer in self.verifiers.peers}
        done, _ = await asyncio.wait(reached, return_when=asyncio.FIRST_COMPLETED)
        first = done.pop()
        target, codec = first.result()
        self._admit(reached[first])
        for task, peer in reached.items():
            if task is not first:
                tasks.create_task(self._compare(task, peer, target))
        return target, codec

    def _admit(self, peer: VerifierPeer) -> None:
        assert peer.info is not None
        self.verifiers.admit(peer)
        self._knowledge.verifiers[peer.address].costs.profile(peer.info.step_times, peer.info.row_multiple)

    async def _compare(
        self, reached: asyncio.Task[tuple[ModelInfo, Codec]], peer: VerifierPeer, target: ModelInfo
    ) -> None:
        await reached
        if self.verifiers.fits(peer, target):
            self._admit(peer)
        else:
            log.error("the verifier at %s hosts something else than %s and is not used", peer.address, target.name)


async def _reach(peer: VerifierPeer | DraftPeer) -> ModelInfo:
    while True:
        try:
            return await peer.wait_until_serving()
        except SlipstreamError as error:
            log.warning("the %s service at %s: %s", peer.role, peer.address, error)
            await asyncio.sleep(_RETRY_SECONDS)


async def _reach_with_codec(peer: VerifierPeer) -> tuple[ModelInfo, Codec]:
    while True:
        info = await _reach(peer)
        try:
            return info, Codec.from_files(await peer.fetch_tokenizer())
        except SlipstreamError as error:  # it went away again between two of our questions
            log.warning("the verifier service at %s: %s", peer.address, error)
            await asyncio.sleep(_RETRY_SECONDS)
