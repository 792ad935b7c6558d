"""Spans of a model service's items and steps, and totals for its metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from opentelemetry.trace import Link, SpanContext, SpanKind

from slipstream.agreed import ROUND_TAIL
from slipstream.distilling.totals import CollectTotals
from slipstream.engine.job import Job
from slipstream.engine.step_note import StepNote
from slipstream.errors import SlipstreamError
from slipstream.telemetry import instruments, names
from slipstream.telemetry.metrics import Distribution
from slipstream.telemetry.tracing import AttributeValue, root_span, server_span_below, span_of, write_span
from slipstream.wire.v1 import draft_pb2, verifier_pb2


class Asked(NamedTuple):
    """Fields of an item that its span shows."""

    handle: str
    round: int
    base_length: int
    tail_length: int
    traceparent: str

    @classmethod
    def of(cls, item: draft_pb2.ProposeItem | verifier_pb2.VerifyItem) -> Asked:
        """Return what is told of a round's item."""
        return cls(item.handle, item.round, item.base_length, len(item.tail), item.traceparent)


class ServiceTelemetry:
    """Totals and spans of one process. Any thread may read the totals."""

    def __init__(self, collected: CollectTotals | None = None) -> None:
        self.collected = collected or CollectTotals()
        self.items: Counter[str] = Counter()
        self.queue = Distribution(instruments.ITEM_QUEUE_TIME.bounds)
        self.step_tokens = Distribution(instruments.STEP_TOKENS.bounds)
        self.step_items = Distribution(instruments.STEP_ITEMS.bounds)
        self.step_time = Distribution(instruments.STEP_TIME.bounds)
        self.held_seconds = 0.0
        """Seconds for which runs waited for hints."""
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def record_step(self, note: StepNote) -> None:
        """Record a step that has ended. Calls may not overlap."""
        count = note.step_count
        for seen, value in (
            (self.step_tokens, float(note.token_count)),
            (self.step_items, float(note.item_count)),
            (self.step_time, note.seconds / count),
        ):
            seen.observe_all([value] * count)
            seen.fold()

    def record_failure(self, error: Exception) -> None:
        """Record an item that has failed."""
        self.items[error.reason if isinstance(error, SlipstreamError) else type(error).__qualname__] += 1

    def record_answer(self, name: str, asked: Asked, job: Job, attributes: Mapping[str, AttributeValue]) -> None:
        """Record an answered item: count it, and write its span below the item's traceparent.

        The span has this ``name``, these ``attributes``, those of every item, and links to steps
        that are spread over the whole item.
        """
        timing = job.timing
        self.items["ok"] += 1
        self.queue.observe(timing.queue)
        self.queue.fold()
        if asked.tail_length > ROUND_TAIL:
            self.prefix_queries += asked.tail_length
            self.prefix_hits += max(0, asked.tail_length - job.prefilled_count)
        contexts = server_span_below(asked.traceparent, name)
        if contexts is None:
            return
        write_span(
            name,
            *contexts,
            timing.arrived_unix_ns,
            timing.arrived_unix_ns + int(timing.total * 1e9),
            {
                names.HANDLE: asked.handle,
                names.ROUND_NUMBER: asked.round,
                names.BASE_LENGTH: asked.base_length,
                names.TAIL_LENGTH: asked.tail_length,
                **attributes,
                names.QUEUE_MS: timing.queue * 1e3,
                names.FORWARD_MS: timing.forward * 1e3,
                names.PREFILL_MS: timing.prefill * 1e3,
                names.STEP_COUNT: timing.forward_count,
                names.STEP_TOKEN_COUNT: timing.step_token_count,
            },
            kind=SpanKind.SERVER,
            links=[Link(self._step_span(step)) for step in timing.steps.notes],
        )

    def _step_span(self, step: StepNote) -> SpanContext:
        """Return a step's span, and write it when the step's first item is answered.

        A step is a trace of its own, because it serves many rounds. It links to their spans.
        """
        if isinstance(step.shown, SpanContext):
            return step.shown
        context = root_span()
        step.shown = context
        started = self._epoch_ns + int(step.started * 1e9)
        write_span(
            names.STEP,
            context,
            None,
            started,
            started + int(step.seconds * 1e9),
            {
                names.STEP_TOKEN_COUNT: step.token_count,
                names.STEP_ITEM_COUNT: step.item_count,
                names.STEP_COUNT: step.step_count,
            },
            links=[Link(asker) for label in step.labels if (asker := span_of(label)).is_valid],
        )
        return context
