"""Current values of a model service's metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream.engine.host import JobHost
from slipstream.hosting.model_service import ModelService
from slipstream.telemetry import instruments
from slipstream.telemetry.metrics import Reading, reading
from slipstream.version import VERSION


def readings(
    service_name: str, host: JobHost[Any], service: ModelService, loop: asyncio.AbstractEventLoop
) -> Iterator[Reading]:
    """Yield the current values. May be called from any thread."""
    yield reading(instruments.ASYNCIO_TASKS, len(asyncio.all_tasks(loop)))
    load, telemetry, info = host.load, service.telemetry, service.info
    usable = max(1, load.page_count)
    yield reading(
        instruments.INFO,
        {
            (
                service_name,
                VERSION,
                info.name,
                info.weights_fingerprint,
                info.tokenizer_fingerprint,
                info.device,
                info.dtype,
                str(info.sampling_version),
            ): 1
        },
    )
    yield reading(instruments.REQUESTS_RUNNING, load.running_count)
    yield reading(instruments.REQUESTS_WAITING, load.waiting_count)
    waits = load.waits
    yield reading(instruments.WAITING_BY_REASON, _by_reason(waits.counts))
    yield reading(instruments.PAUSED, load.paused_count)
    yield reading(instruments.SAT_OUT_STEPS, _by_reason(waits.step_counts))
    yield reading(instruments.WAITING_TIME, _by_reason({**waits.seconds, "hint": telemetry.held_seconds}))
    yield reading(instruments.OLDEST_WAIT, waits.oldest)
    yield reading(instruments.SEQUENCES, load.sequence_count)
    yield reading(instruments.KV_USAGE, load.held_page_count / usable)
    yield reading(
        instruments.KV_PAGES,
        {
            ("held",): load.held_page_count,
            ("cached",): load.cached_page_count,
            ("free",): load.free_page_count,
        },
    )
    yield reading(instruments.STEPS, load.step_count)
    yield reading(instruments.PREEMPTIONS, load.preempted_count)
    yield reading(instruments.HEAD_GUESSES, load.guess_count)
    yield reading(instruments.HEAD_TIME, load.guess_seconds)
    yield reading(instruments.STEP_TOKENS, telemetry.step_tokens)
    yield reading(instruments.STEP_ITEMS, telemetry.step_items)
    yield reading(instruments.STEP_TIME, telemetry.step_time)
    yield reading(instruments.ITEM_QUEUE_TIME, telemetry.queue)
    yield reading(instruments.ITEMS, {(outcome,): count for outcome, count in dict(telemetry.items).items()})
    yield reading(instruments.PREFIX_CACHE_QUERIES, telemetry.prefix_queries)
    yield reading(instruments.PREFIX_CACHE_HITS, telemetry.prefix_hits)
    collected = telemetry.collected
    yield reading(instruments.COLLECTING, int(collected.is_collecting))
    yield reading(instruments.COLLECTED_ROWS, collected.row_count)
    yield reading(instruments.COLLECT_DROPPED_ROWS, collected.dropped_row_count)
    yield reading(instruments.COLLECTED_BYTES, collected.byte_count)


def _by_reason(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(reason,): value for reason, value in values.items()}
