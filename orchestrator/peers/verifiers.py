"""The verifiers that share the sessions: a session stays where its KV is, and moves on when its verifier is away."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.peers.breaker import Breaker
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifier_peer import VerifierPeer

log = logging.getLogger(__name__)


class Verifiers:
    """Verifiers of the same weights. Tokens are truth and KV is cache, so moving a session is prefilling it elsewhere."""

    def __init__(self, peers: Sequence[VerifierPeer]) -> None:
        self.peers = list(peers)
        self._by_address = {peer.address: peer for peer in self.peers}
        self._breakers = {peer.address: Breaker() for peer in self.peers}
        self._session_counts: Counter[str] = Counter()
        self._admitted: set[str] = set()
        self.failover_count = 0
        """Sessions that moved because their verifier was away."""
        self._on_reachable_changed: Callable[[], None] = lambda: None

    def __str__(self) -> str:
        return ", ".join(self._by_address)

    @property
    def reachable(self) -> bool:
        """Whether one of those in use says that it serves."""
        return any(peer.reachable for peer in self.peers if peer.address in self._admitted)

    @property
    def is_starting(self) -> bool:
        """Whether one of them is there and does not serve yet: loading may take minutes."""
        return any(peer.is_starting for peer in self.peers)

    def on_reachable_changed(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called whenever ``reachable`` may have changed; it takes the place of an earlier one."""
        self._on_reachable_changed = callback
        for peer in self.peers:
            peer.on_reachable_changed(callback)

    @property
    def is_alone(self) -> bool:
        """Whether there is no other verifier to wait for."""
        return len(self._admitted) == 1

    def admit(self, peer: VerifierPeer) -> None:
        """Use a verifier from now on: it has been reached, and hosts the target."""
        self._admitted.add(peer.address)
        self._on_reachable_changed()

    def home(self, sequence: PeerSequence) -> VerifierPeer:
        """The verifier that a session's sequence lives on; a new sequence is given to the one with the fewest."""
        if sequence.address is None:
            peers = self._usable() or [peer for peer in self.peers if peer.address in self._admitted]
            peer = min(peers, key=lambda peer: self._session_counts[peer.address])
            sequence.address = peer.address
            if self._breakers[peer.address].is_half_open:
                self._breakers[peer.address].probed()
            self._session_counts[peer.address] += 1
        return self._by_address[sequence.address]

    def answered(self, sequence: PeerSequence) -> None:
        """A sequence's verifier is well."""
        assert sequence.address is not None
        self._breakers[sequence.address].succeeded()

    def leave(self, sequence: PeerSequence) -> bool:
        """A sequence's verifier is away. True if there is another to try at once: the sequence has moved."""
        away = sequence.address
        assert away is not None
        self._breakers[away].failed()
        if not any(peer.address != away for peer in self._usable()):
            return False
        self._by_address[away].close_sequence(sequence)  # it may be well, and only its stream was lost
        self.forget(sequence)
        self.failover_count += 1
        log.warning("the verifier at %s is away: a session moves to %s", away, self.home(sequence).address)
        return True

    def release(self, sequence: PeerSequence) -> None:
        """Give a sequence's pages back."""
        if sequence.address is not None:
            self._by_address[sequence.address].close_sequence(sequence)
            self.forget(sequence)

    def forget(self, sequence: PeerSequence) -> None:
        """A sequence has no home any more."""
        if sequence.address is not None:
            self._session_counts[sequence.address] -= 1
        sequence.address = None
        sequence.forget()

    def fits(self, peer: VerifierPeer, target: ModelInfo) -> bool:
        """Whether a verifier that has been reached may share the target's sessions: all but names must be equal."""
        assert peer.info is not None
        return replace(peer.info, name=target.name, device=target.device) == target

    async def close(self) -> None:
        """Close them all."""
        for peer in self.peers:
            await peer.close()

    def _usable(self) -> list[VerifierPeer]:
        """Those that answer, and those of which it is time to see whether they are back."""
        breakers = ((peer, self._breakers[peer.address]) for peer in self.peers if peer.address in self._admitted)
        return [peer for peer, breaker in breakers if breaker.is_closed or breaker.is_half_open]
