"""What the traces of all turns have in common: the root span, and one round below it for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

from slipstream.client import Result
from slipstream.telemetry import names
from tests.system.conftest import PAPER_PAIR
from tests.trace_collector import Collector, Received


def check_root(
    collector: Collector, roots: Sequence[Received], number: int, result: Result, session_id: str
) -> tuple[list[Received], dict[bytes, list[Received]]]:
    """Check the root span of turn ``number`` of a chat against its result. Return its rounds, and
    all spans of its trace by their parents."""
    root = roots[number - 1]
    trace = [r for r in collector.received if r.span.trace_id == root.span.trace_id]
    children: dict[bytes, list[Received]] = defaultdict(list)
    for received in trace:
        children[received.span.parent_span_id].append(received)
    assert root.service == "orchestrator"
    assert root.attribute(names.CONVERSATION_ID) == session_id
    assert root.attribute(names.TURN) == number
    assert root.attribute(names.USAGE_INPUT_TOKENS) == result.prompt_token_count
    assert root.attribute(names.USAGE_OUTPUT_TOKENS) == 30
    assert root.attribute(names.CACHED_TOKENS) == result.cached_token_count
    assert root.attribute("gen_ai.provider.name") == "slipstream"
    assert root.attribute("gen_ai.request.model") == root.attribute("gen_ai.response.model") == PAPER_PAIR.target
    assert root.attribute("gen_ai.usage.cache_read.input_tokens") == result.cached_token_count
    first_chunk = root.attribute("gen_ai.response.time_to_first_chunk")
    assert first_chunk == pytest.approx(result.time_to_first_token, abs=1e-6)
    assert root.attribute(names.REQUEST_SEED) == 11
    assert root.attribute(names.ACCEPTED_TOKEN_COUNT) == result.accepted_token_count
    assert root.attribute(names.DRAFT_TOKEN_COUNT) == result.draft_token_count
    assert root.attribute(names.TIME_TO_FIRST_TOKEN_MS) == pytest.approx(1e3 * result.time_to_first_token, abs=1e-3)
    assert root.attribute(names.RESPONSE_FINISH_REASONS) == ["max_tokens"]
    parts = (names.DRAFT_MS, names.VERIFY_MS, names.QUEUE_MS, names.NETWORK_MS, names.ORCHESTRATOR_MS)
    assert sum(float(str(root.attribute(part))) for part in parts) == pytest.approx(1e3 * result.total_time, rel=0.01)
    linked = [link.span_id for link in root.span.links]
    assert linked == ([roots[0].span.span_id] if number == 2 else [])
    rounds = children[root.span.span_id]
    assert [r.span.name for r in rounds] == [names.ROUND] * result.round_count
    assert sum(int(str(r.attribute(names.ACCEPTED_COUNT))) for r in rounds) == result.accepted_token_count
    return rounds, children
