"""GET /metrics: what the gateway counts, as Prometheus reads it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from gateway.exchange import Exchange, current
from slipstream.telemetry import instruments
from slipstream.telemetry.instruments import Instrument
from slipstream.version import VERSION

router = APIRouter()

_UNKNOWN = "other"
"""Endpoint of requests that no route takes: a label must not have what callers write."""

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Counts of a gateway's requests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        info, told = instruments.INFO, {"service": "gateway", "version": VERSION}
        gauge = Gauge(f"slipstream_{info.name}", info.text, info.labels, registry=self.registry)
        gauge.labels(*(told.get(label, "") for label in info.labels)).set(1)
        self._requests = self._counter(instruments.GATEWAY_REQUESTS)
        running = instruments.GATEWAY_RUNNING
        self._running = Gauge(f"slipstream_{running.name}", running.text, registry=self.registry)
        self._latency = self._histogram(instruments.GATEWAY_LATENCY)
        self._first_token = self._histogram(instruments.GATEWAY_TIME_TO_FIRST_TOKEN)
        self._prompt_tokens = self._counter(instruments.GATEWAY_PROMPT_TOKENS)
        self._generation_tokens = self._counter(instruments.GATEWAY_GENERATION_TOKENS)

    def count_begin(self) -> None:
        """Count a request that begins."""
        self._running.inc()

    def count_end(self, exchange: Exchange, path: str | None, status: int) -> None:
        """Count a request that has ended. ``path`` is that of its route."""
        endpoint = path or _UNKNOWN
        self._running.dec()
        self._requests.labels(endpoint, str(status)).inc()
        self._latency.labels(endpoint).observe(exchange.seconds())
        if exchange.first_token is not None:
            self._first_token.labels(endpoint).observe(exchange.first_token)

    def count_tokens(self, prompt: int, generated: int) -> None:
        """Count tokens of a request, whose answers have ended."""
        self._prompt_tokens.inc(prompt)
        self._generation_tokens.inc(generated)

    def _counter(self, instrument: Instrument) -> Counter:
        return Counter(f"slipstream_{instrument.name}", instrument.text, instrument.labels, registry=self.registry)

    def _histogram(self, instrument: Instrument) -> Histogram:
        name, bounds = f"slipstream_{instrument.name}", instrument.bounds
        return Histogram(name, instrument.text, instrument.labels, registry=self.registry, buckets=bounds)


_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "the metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@router.get("/metrics", response_class=Response, responses=_TEXT)
async def metrics() -> Response:
    """Return the gateway's metrics as Prometheus reads them. No token is needed, and no request's
    content is in them."""
    return Response(generate_latest(current().metrics.registry), media_type=CONTENT_TYPE_LATEST)
