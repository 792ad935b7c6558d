"""Find and connect the peers: verifiers, the first of which sets the target, and drafts.

Peers may come, go and move while the orchestrator runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

from orchestrator.errors import NotReadyError
from orchestrator.peers.draft_peer import DraftPeer
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.model_peer import PeerStatus
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifiers import Verifiers
from orchestrator.processes.host_names import HostNames, Resolve, resolve
from orchestrator.processes.peer_startup import wait_for_codec, wait_for_peer, wait_for_restart
from orchestrator.processes.settings import OrchestratorSettings
from orchestrator.rounds.drafting import DraftSide
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.verification import VerifierSide
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.turns.pair import Pair
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.rpc.connector import Connector
from slipstream.structures.trials import StructureTrials
from slipstream.transport.addresses import PlaintextError

log = logging.getLogger(__name__)

_DRAFT_GRACE_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_MISSES = 3
"""Lookups without an address after which a reachable service is given up. Some name servers return
only a few of many addresses each time."""


class Peers:
    """The verifiers and drafts of an orchestrator. `connect` waits for them, `close` closes their
    channels."""

    def __init__(self, settings: OrchestratorSettings, connector: Connector, resolve: Resolve = resolve) -> None:
        self._settings = settings
        self._connector = connector
        self._verifier_names = HostNames(settings.verifier_addresses, resolve)
        self._draft_names = HostNames(settings.draft_addresses, resolve)
        self._names_of_settings = frozenset(self._draft_names.names)
        self.verifiers = Verifiers([])
        self.drafts = Drafts()
        """Drafts that may propose, once there is a target."""
        self._draft_peers: dict[str, DraftPeer] = {}
        self._structures: StructureTrials | None = None
        self.verifying: VerifierSide | None = None
        """Verification for all sessions; None until there is a pair."""
        self._first: asyncio.Future[tuple[ModelInfo, Codec]] = asyncio.get_running_loop().create_future()
        self._drafts_changed = asyncio.Event()
        self._attending: dict[VerifierPeer | DraftPeer, asyncio.Task[None]] = {}
        self._missed: Counter[str] = Counter()
        self._tasks: asyncio.TaskGroup | None = None
        self._following: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return ", ".join(self._verifier_names.addresses)

    @property
    def all(self) -> list[VerifierPeer | DraftPeer]:
        """Return every verifier and draft."""
        return [*self.verifiers.peers, *self._draft_peers.values()]

    @property
    def reachable(self) -> tuple[bool, bool]:
        """Return whether a verifier, and whether a draft, can be reached now."""
        return self.verifiers.reachable, any(peer.reachable for peer in self._draft_peers.values())

    @property
    def collect_share(self) -> float | None:
        """Largest share of the sequences that a verifier collects; None if none says it."""
        return self.verifiers.collect_share

    @property
    def heads(self) -> str:
        """Kind of the heads that a verifier has; empty if none has any."""
        return self.verifiers.heads

    async def statuses(self) -> list[PeerStatus]:
        """Ask every peer for its status."""
        return list(await asyncio.gather(*(peer.status() for peer in self.all)))

    async def connect(self, tasks: asyncio.TaskGroup) -> Pair:
        """Wait for a verifier, and for a short time for a draft. Tasks of ``tasks`` wait for all
        further peers."""
        self._tasks = tasks
        await self._update_peers(tasks)
        if self._verifier_names.may_change or self._draft_names.may_change:
            self._follow(tasks)
        target, codec = await self._first
        if self._draft_peers:
            await self._wait_for_a_draft()
        return self._pair(target, codec)

    @property
    def draft_names(self) -> list[str]:
        """Return the names of the drafts, as they were given."""
        return self._draft_names.names

    async def add_draft(self, name: str) -> None:
        """Add a draft, given as host:port. NotReadyError before `connect`; InvalidFieldsError if
        the peer token would go there in plaintext."""
        if self._tasks is None:
            raise NotReadyError("the orchestrator starts")
        try:
            self._settings.refuse_plaintext([name])
        except PlaintextError as error:
            raise InvalidFieldsError([FieldViolation("address", f"is refused: {error}")]) from error
        self._draft_names.add(name)
        await self._update_peers(self._tasks)
        self._follow(self._tasks)

    def remove_draft(self, name: str) -> None:
        """Give up a draft. Its sessions move when they next draft."""
        for address in self._draft_names.remove(name):
            self.drafts.retire(address)
        if self._tasks is not None:
            self._follow(self._tasks)

    def _follow(self, tasks: asyncio.TaskGroup) -> None:
        if self._following is None:
            self._following = tasks.create_task(self._follow_names(tasks))

    async def close(self) -> None:
        """Release what sessions hold at the peers, then close the channels."""
        if self._structures is not None:
            await self._structures.close()
        await self.verifiers.close()
        for peer in [*self._draft_peers.values()]:
            await peer.close()

    def _pair(self, target: ModelInfo, codec: Codec) -> Pair:
        settings = self._settings
        self.verifying = verifying = VerifierSide(
            self.verifiers,
            target,
            lease_seconds=settings.lease_seconds,
            patience_seconds=settings.verifier_patience_seconds,
        )
        self._structures = StructureTrials(
            codec.tokenizer_json, target.vocabulary_size, target.end_token_ids, settings.compile_limits
        )
        return Pair(
            target,
            self.drafts,
            codec,
            Rounds(verifying, self.drafts, target, drafts_per_session=settings.drafts_per_session),
            self._structures,
            settings.draft_length,
            settings.default_max_token_count,
        )

    def _admit(self, peer: VerifierPeer) -> None:
        assert peer.info is not None
        self.verifiers.admit(peer)
        peer.steps.profile(peer.info.step_times, peer.info.row_multiple)

    async def _attend_verifier(self, peer: VerifierPeer) -> None:
        """Use a verifier once it hosts the target. The first verifier that answers sets the target;
        another may have to be restarted first."""
        if not self._first.done():
            known = await wait_for_codec(peer)
            if not self._first.done():
                self._first.set_result(known)
        else:
            await wait_for_peer(peer)
        target, _ = await self._first
        while differences := self.verifiers.differences(peer, target):
            what = f"other {', '.join(differences)}"
            log.error(
                "the verifier at %s does not host the same as %s and is not used: %s", peer.address, target.name, what
            )
            await wait_for_restart(peer)
        self._admit(peer)
        while True:  # it may come back with another share that it collects
            await wait_for_restart(peer)

    async def _attend_draft(self, peer: DraftPeer) -> None:
        """Use a draft once it serves, and ask what it hosts after each restart."""
        target, _ = await asyncio.shield(self._first)  # a draft that is removed cancels its own task alone
        settings, name = self._settings, self._draft_names.name_of(peer.address)
        side = DraftSide(
            peer,
            target,
            lease_seconds=settings.lease_seconds,
            deadline_seconds=settings.draft_deadline_seconds,
            name=name,
            is_added=name not in self._names_of_settings,
        )
        self.drafts.add(side)
        info = await wait_for_peer(peer)
        while True:
            self._log_shared_processors(peer.address, info)
            if not side.fits:
                own, other = target.tokenizer_fingerprint, info.tokenizer_fingerprint
                log.error(
                    "the draft at %s, %s, has tokenizer %s, but the target %s has %s: it is not used. "
                    "Start it with --target-tokenizer %s, and it translates its hints",
                    peer.address,
                    info.name,
                    other,
                    target.name,
                    own,
                    target.name,
                )
            self._drafts_changed.set()
            info = await wait_for_restart(peer)

    def _log_shared_processors(self, address: str, draft: ModelInfo) -> None:
        for verifier in self.verifiers.peers:
            if verifier.info is None or not draft.processors.are_short_beside(verifier.info.processors):
                continue
            if draft.costs_as_much_as(verifier.info):
                what = (
                    "a step of the draft takes as long as one of the target, so it helps turns of a fixed length alone"
                )
            else:
                what = "trials show whether the draft pays there"
            log.info(
                "the draft at %s and the verifier at %s share processors that are too few for both: %s. "
                "Give both fewer threads (--threads) or separate processors",
                address,
                verifier.address,
                what,
            )

    async def _follow_names(self, tasks: asyncio.TaskGroup) -> None:
        """Add peers at new addresses of the names, and give up peers whose addresses are gone."""
        looked = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            # an address that was removed during its lookup has no peer
            addresses = [each for each in self.drafts.remove_retired() if each in self._draft_peers]
            gone: list[VerifierPeer | DraftPeer] = [self._draft_peers.pop(address) for address in addresses]
            for peer in gone + self.verifiers.remove_retired():
                await self._give_up(peer)
            if all(peer.reachable for peer in self.all) and time.monotonic() - looked < self._settings.resolve_seconds:
                continue
            looked = time.monotonic()
            await self._update_peers(tasks)

    async def _update_peers(self, tasks: asyncio.TaskGroup) -> None:
        await self._verifier_names.resolve_all()
        await self._draft_names.resolve_all()
        verifiers = {peer.address: peer for peer in self.verifiers.peers}
        for address in self._verifier_names.addresses:
            if address not in verifiers:
                connector = self._connector.for_host(self._verifier_names.host_of(address))
                verifier = VerifierPeer(address, self._settings.verifier_deadline_seconds, connector)
                self.verifiers.add(verifier)
                self._attending[verifier] = tasks.create_task(self._attend_verifier(verifier))
        for address in self._draft_names.addresses:
            if address not in self._draft_peers:
                connector = self._connector.for_host(self._draft_names.host_of(address))
                draft = self._draft_peers[address] = DraftPeer(address, connector)
                self._attending[draft] = tasks.create_task(self._attend_draft(draft))
        for verifier in verifiers.values():
            self._retire_if_unnamed(verifier, self._verifier_names, self.verifiers)
        for draft in self._draft_peers.values():
            self._retire_if_unnamed(draft, self._draft_names, self.drafts)

    def _retire_if_unnamed(self, peer: VerifierPeer | DraftPeer, names: HostNames, among: Verifiers | Drafts) -> None:
        address = peer.address
        if address in names.addresses:
            self._missed[address] = 0
            among.cancel_retirement(address)
            return
        self._missed[address] += 1
        if self._missed[address] >= (_MISSES if peer.reachable else 1):
            among.retire(address)

    async def _give_up(self, peer: VerifierPeer | DraftPeer) -> None:
        log.info("the %s service at %s is not named any more and is given up", peer.role, peer.address)
        self._missed.pop(peer.address, None)
        self._attending.pop(peer).cancel()
        await peer.close()

    async def _wait_for_a_draft(self) -> None:
        """Wait a short time until a draft fits, or until all drafts are known."""
        try:
            async with asyncio.timeout(_DRAFT_GRACE_SECONDS):
                while not any(side.fits for side in self.drafts.sides) and any(
                    peer.info is None for peer in self._draft_peers.values()
                ):
                    self._drafts_changed.clear()
                    await self._drafts_changed.wait()
        except TimeoutError:
            log.warning("no draft service yet: plain decoding until one comes")
