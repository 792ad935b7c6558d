"""What the spans of a round's requests to its peers say. Where nothing is traced nothing is computed for them."""

from __future__ import annotations

from opentelemetry.trace import Span

from orchestrator.peers.exchange import PeerTiming
from slipstream.telemetry import names


def show_peer(span: Span, address: str) -> None:
    """Whom a request went to."""
    if span.is_recording():
        host, _, port = address.rpartition(":")
        span.set_attribute(names.SERVER_ADDRESS, host.strip("[]"))
        if port.isdecimal():
            span.set_attribute(names.SERVER_PORT, int(port))


def show_timing(span: Span, timing: PeerTiming) -> None:
    """Where the time of an answered request went. The network's share is what the peer's own clock does not account for."""
    if span.is_recording():
        span.set_attributes(
            {
                names.QUEUE_MS: timing.queue * 1e3,
                names.FORWARD_MS: timing.forward * 1e3,
                names.PREFILL_MS: timing.prefill * 1e3,
                names.NETWORK_MS: (timing.round_trip - timing.total) * 1e3,
                names.STEP_TOKEN_COUNT: timing.step_token_count,
            }
        )
