"""Export of metrics: Prometheus fetches them, and an OTLP collector gets them periodically."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.telemetry.exporters import metric_exporters, milliseconds
from slipstream.telemetry.instruments import Kind
from slipstream.telemetry.last_export import export_last
from slipstream.telemetry.metrics import Distribution, Labels, Reading, Source
from slipstream.telemetry.tracing import resource_of
from slipstream.version import VERSION

log = logging.getLogger(__name__)

_SCOPE = InstrumentationScope("slipstream", VERSION)


class MetricsAddressError(SlipstreamError):
    """Metrics cannot be served on --metrics-address."""

    reason = Reason.ADDRESS_IN_USE


class Exposition:
    """Context manager that exports metrics: at an address for Prometheus, by OTLP, or both."""

    def __init__(self, service_name: str, address: str, source: Source) -> None:
        """Export readings of ``source``. ``address`` is host:port of ``/metrics``; empty: none."""
        self._service_name = service_name
        self._address = address
        self._source = source
        self._server: object = None
        self._pusher: _Pusher | None = None

    def __enter__(self) -> Exposition:
        if self._address:
            self._serve()
        if exporters := metric_exporters():
            self._pusher = _Pusher(self._source, resource_of(self._service_name), exporters)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pusher is not None:
            self._pusher.stop()
        if self._server is not None:
            self._server.shutdown()  # type: ignore[attr-defined]
            self._server.server_close()  # type: ignore[attr-defined]

    def _serve(self) -> None:
        host, _, port = self._address.rpartition(":")
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        registry.register(PrometheusSource(self._source))
        try:
            if not port.isdecimal():
                raise OSError("no port is given")
            self._server, _ = start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
        except OSError as error:
            raise MetricsAddressError(
                f"cannot serve metrics on {self._address}: {error}; stop what listens there or choose another --metrics-address"
            ) from error
        log.info("metrics are at http://%s/metrics", self._address)


class PrometheusSource:
    """A collector of prometheus_client that returns readings."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterable[Family]:
        """Yield one metric family for each instrument."""
        for reading in self._source():
            yield _family(reading)


def _family(reading: Reading) -> Family:
    instrument = reading.instrument
    name = f"slipstream_{instrument.name}"
    if instrument.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, instrument.text, labels=instrument.labels)
        for labels, value in reading.values.items():
            assert isinstance(value, Distribution)
            buckets, total = [], 0
            for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
                total += count
                buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(total)))
            histogram.add_metric(labels, buckets, value.sum)
        return histogram
    kind = CounterMetricFamily if instrument.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(name, instrument.text, labels=instrument.labels)
    for labels, value in reading.values.items():
        assert not isinstance(value, Distribution)
        family.add_metric(labels, value)
    return family


class _Pusher:
    """Thread that exports every OTEL_METRIC_EXPORT_INTERVAL milliseconds and at the end."""

    def __init__(self, source: Source, resource: Resource, exporters: Sequence[MetricExporter]) -> None:
        self._source = source
        self._resource = resource
        self._begun = time.time_ns()
        self._exporters = exporters
        self._stopped = threading.Event()
        self._interval = milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1e3
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Export once more, then stop."""
        self._stopped.set()
        export_last("metrics", self._thread.join)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._push()
        self._push()
        for exporter in self._exporters:
            exporter.shutdown()

    def _push(self) -> None:
        for exporter in self._exporters:
            try:
                exporter.export(otlp_metrics(self._source(), self._resource, self._begun, time.time_ns()))
            except Exception:  # a fault of the collector must not end this thread
                log.exception("metrics could not be exported")


def otlp_metrics(readings: Iterable[Reading], resource: Resource, begun: int, now: int) -> MetricsData:
    """Return readings in OpenTelemetry's model, cumulative since ``begun``. Times are nanoseconds
    since the epoch."""
    metrics = [_metric(reading, begun, now) for reading in readings]
    scope = ScopeMetrics(scope=_SCOPE, metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _metric(reading: Reading, begun: int, now: int) -> Metric:
    instrument = reading.instrument
    points: list[NumberDataPoint] = []
    histograms: list[HistogramDataPoint] = []
    for labels, value in reading.values.items():
        attributes = _attributes(reading, labels)
        if isinstance(value, Distribution):
            counts = list(value.counts)
            histograms.append(
                HistogramDataPoint(
                    attributes=attributes,
                    start_time_unix_nano=begun,
                    time_unix_nano=now,
                    count=sum(counts),
                    sum=value.sum,
                    bucket_counts=counts,
                    explicit_bounds=value.bounds,
                    min=None,  # type: ignore[arg-type]  # unknown: the encoder leaves them out
                    max=None,  # type: ignore[arg-type]
                )
            )
        else:
            points.append(NumberDataPoint(attributes, begun, now, value))
    temporality = AggregationTemporality.CUMULATIVE
    data: Sum | Gauge | Histogram
    if instrument.kind is Kind.HISTOGRAM:
        data = Histogram(histograms, temporality)
    elif instrument.kind is Kind.COUNTER:
        data = Sum(points, temporality, is_monotonic=True)
    else:
        data = Gauge(points)
    return Metric(f"slipstream_{instrument.name}", instrument.text, instrument.unit, data)


def _attributes(reading: Reading, labels: Labels) -> dict[str, str]:
    return dict(zip(reading.instrument.labels, labels, strict=True))
