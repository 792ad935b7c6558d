"""The verifiers that share the sessions. A session stays where its KV is, and moves if its verifier
is away."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields

from orchestrator.peers.breaker import Breaker
from orchestrator.peers.checking.faults import PeerFaultError
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.prefixes import Prefixes
from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifier_peer import VerifierPeer
from slipstream.rpc.status import PeerError

log = logging.getLogger(__name__)

_LOPSIDED = 2
"""Factor by which a verifier has too many sessions, compared with the least loaded one plus one.

A session is then not placed there for its cached beginning. The next session that begins alike
finds it cached at both.
"""


class Verifiers:
    """Verifiers of the same weights. The tokens are the truth and KV is only a cache, so a session
    moves by a prefill elsewhere."""

    def __init__(self, peers: Sequence[VerifierPeer]) -> None:
        self._by_address = {peer.address: peer for peer in peers}
        self._breakers = {peer.address: Breaker() for peer in peers}
        self._session_counts: Counter[str] = Counter()
        self._admitted: set[str] = set()
        self._retired: set[str] = set()
        self._prefixes = Prefixes()
        self.failover_count = 0
        """Sessions that moved because their verifier was away."""
        self._on_reachable_changed: Callable[[], None] = lambda: None

    def __str__(self) -> str:
        return ", ".join(self._by_address)

    @property
    def peers(self) -> list[VerifierPeer]:
        """All verifiers, including those not admitted yet and those being retired."""
        return list(self._by_address.values())

    @property
    def reachable(self) -> bool:
        """True if one of the verifiers in use reports that it serves."""
        return any(peer.reachable for peer in self.peers if peer.address in self._admitted)

    @property
    def collect_share(self) -> float | None:
        """Largest share of the sequences that a verifier in use collects; None if none says it."""
        shares = [info.collect_share for info in self._infos if info.collect_share is not None]
        return max(shares, default=None)

    @property
    def heads(self) -> str:
        """Kind of the heads of the first verifier in use that has any; empty if none has."""
        return next((info.heads for info in self._infos if info.heads), "")

    @property
    def _infos(self) -> list[ModelInfo]:
        """Facts about the verifiers in use, as far as they are known."""
        return [peer.info for peer in self.peers if peer.address in self._admitted and peer.info is not None]

    def has_heads(self, sequence: PeerSequence) -> bool:
        """Return whether the verifier of a sequence has heads. True if that is not known."""
        peer = self._by_address.get(sequence.address or "")
        return peer is None or peer.info is None or peer.info.heads != ""

    @property
    def in_use(self) -> list[VerifierPeer]:
        """The verifiers that answer. If none does, all verifiers that sessions may use."""
        return self._usable() or [peer for peer in self.peers if peer.address in self._admitted]

    @property
    def is_starting(self) -> bool:
        """True if a verifier is there and does not serve yet. Loading may take minutes."""
        return any(peer.is_starting for peer in self.peers)

    @property
    def session_counts(self) -> dict[str, int]:
        """Number of sessions on each verifier, by address."""
        return {address: self._session_counts[address] for address in self._by_address}

    def on_reachable_changed(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called whenever ``reachable`` may have changed; it takes the place of
        an earlier one."""
        self._on_reachable_changed = callback
        for peer in self.peers:
            peer.on_reachable_changed(callback)

    @property
    def is_alone(self) -> bool:
        """True if there is no other verifier to wait for."""
        return len(self._admitted) == 1

    def add(self, peer: VerifierPeer) -> None:
        """Add a verifier. It is admitted once it has been reached."""
        self._by_address[peer.address] = peer
        self._breakers[peer.address] = Breaker()
        peer.on_reachable_changed(self._on_reachable_changed)

    def retire(self, address: str) -> None:
        """Move all sessions away from a verifier: each moves when it next verifies, if there is
        another verifier."""
        self._retired.add(address)

    def cancel_retirement(self, address: str) -> None:
        """Keep a verifier that was to be retired, if it was."""
        self._retired.discard(address)

    def remove_retired(self) -> list[VerifierPeer]:
        """Remove and return the retired verifiers without sessions, if there are others."""
        spared = set() if self._admitted - self._retired else self._admitted
        left = [self._by_address.pop(each) for each in self._retired - spared if not self._session_counts[each]]
        for peer in left:
            self._admitted.discard(peer.address)
            self._retired.discard(peer.address)
            self._prefixes.forget(peer.address)
            del self._breakers[peer.address], self._session_counts[peer.address]
        return left

    def admit(self, peer: VerifierPeer) -> None:
        """Use a verifier from now on. It has been reached, and hosts the target."""
        self._admitted.add(peer.address)
        self._on_reachable_changed()

    def verifier_of(self, sequence: PeerSequence, tokens: Sequence[int] = ()) -> VerifierPeer:
        """Return the verifier of a session's sequence. A new sequence, or one whose verifier is
        being retired, gets a verifier that has read the same beginning of its ``tokens``, unless
        that one has far more sessions. Otherwise it gets the one with the fewest."""
        if sequence.address in self._retired and self._usable():
            self.release(sequence)
        if sequence.address is None:
            peers = self.in_use
            peer = self._fewest(peers)
            read = self._prefixes.find(tokens)
            alike = [each for each in peers if each.address in read]
            if alike and self._count(self._fewest(alike)) < _LOPSIDED * (self._count(peer) + 1):
                peer = self._fewest(alike)
            self._prefixes.learn(tokens, peer.address)
            sequence.address = peer.address
            if self._breakers[peer.address].is_half_open:
                self._breakers[peer.address].record_probe()
            self._session_counts[peer.address] += 1
        return self._by_address[sequence.address]

    def record_success(self, sequence: PeerSequence) -> None:
        """Record that a sequence's verifier answers well."""
        assert sequence.address is not None
        self._breakers[sequence.address].record_success()

    def restated_in_vain(self, sequence: PeerSequence, error: PeerError) -> PeerFaultError:
        """Return the fault of a verifier that got position and rule in full several times and does
        not accept them."""
        assert sequence.address is not None
        fault = PeerFaultError("error.reason", f"must not be {error.reason} once all has been stated again")
        self._by_address[sequence.address].faults.note(fault)
        return fault

    def fail_over(self, sequence: PeerSequence) -> bool:
        """Move a sequence whose verifier is away. Returns True if it has moved, False if there is
        no other verifier."""
        away = sequence.address
        assert away is not None
        self._breakers[away].record_failure()
        if not any(peer.address != away for peer in self._usable()):
            return False
        self._by_address[away].close_sequence(sequence)  # it may be well, and only its stream was lost
        self.forget(sequence)
        self.failover_count += 1
        log.warning("the verifier at %s is away: a session moves to %s", away, self.verifier_of(sequence).address)
        return True

    def release(self, sequence: PeerSequence) -> None:
        """Close a sequence's handle at its verifier."""
        if sequence.address is not None:
            self._by_address[sequence.address].close_sequence(sequence)
            self.forget(sequence)

    def forget(self, sequence: PeerSequence) -> None:
        """Remove a sequence from its verifier."""
        if sequence.address is not None:
            self._session_counts[sequence.address] -= 1
        sequence.address = None
        sequence.forget()

    def differences(self, peer: VerifierPeer, target: ModelInfo) -> list[str]:
        """Return the names of the fields in which a verifier differs from the target. It may share
        the target's sessions if there are none. Its name may differ, and its device may be another
        one of the same kind."""
        assert peer.info is not None
        compared = [each.name for each in fields(target) if each.compare and each.name not in ("name", "device")]
        return [name for name in compared if getattr(peer.info, name) != getattr(target, name)]

    async def close(self) -> None:
        """Close all peers."""
        for peer in self.peers:
            await peer.close()

    def _fewest(self, peers: Sequence[VerifierPeer]) -> VerifierPeer:
        return min(peers, key=self._count)

    def _count(self, peer: VerifierPeer) -> int:
        return self._session_counts[peer.address]

    def _usable(self) -> list[VerifierPeer]:
        """Return the verifiers that answer, and those that are due for a probe. The peer itself
        probes a stalled one."""
        used = self._admitted - self._retired
        known = [peer for peer in self.peers if peer.address in used and not peer.is_stalled]
        breakers = ((peer, self._breakers[peer.address]) for peer in known)
        return [peer for peer, breaker in breakers if breaker.is_closed or breaker.is_half_open]
