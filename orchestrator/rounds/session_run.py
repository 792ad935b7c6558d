"""A session's run on its verifier, if one goes on."""

from __future__ import annotations

from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifier_peer import VerifierPeer
from orchestrator.peers.verifier_run import VerifierRun


class SessionRun:
    """At most one run at a time. It ends with the turn at the latest."""

    def __init__(self, sequence: PeerSequence) -> None:
        self.sequence = sequence
        self._home: VerifierPeer | None = None
        self._run: VerifierRun | None = None

    def continuing(self, home: VerifierPeer, length: int) -> VerifierRun | None:
        """Return the run that goes on at a verifier after ``length`` tokens. Any other run is
        stopped."""
        run = self._run
        if run is not None and self._home is home and run.length == length and run.goes_on:
            return run
        self.stop()
        return None

    def begin(self, home: VerifierPeer, run: VerifierRun) -> None:
        """Have a run that has just begun."""
        self._home, self._run = home, run

    def stop(self) -> None:
        """Stop the run, if there is one. Its KV stays."""
        if self._run is not None:
            self._run.stop()
            self._home = self._run = None
