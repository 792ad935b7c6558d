"""What an exchange with a peer took apart from prompts, its own and others'. Pure."""

from __future__ import annotations

from orchestrator.peers.exchange import PeerTiming


def without_prompts(timing: PeerTiming) -> tuple[float, float]:
    """Seconds of an item's forwards, and of all that surrounds them, both as they would have been
    without prompts.

    A service tells only the sum of what prompts took, in forwards that an item waited for and in
    its own. They are taken to have been waited for as far as the queue allows: what is wrong then
    is at most a wait for others' steps, and that is short.
    """
    waited = min(timing.queue, timing.prefill)
    forward = max(0.0, timing.forward - (timing.prefill - waited))
    return forward, max(0.0, timing.round_trip - timing.forward - waited)
