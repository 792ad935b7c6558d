"""An orchestrator that says it is healthy has run warm-up turns: on the peers, and in no count."""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from dataclasses import replace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.sessions.turns import warming
from orchestrator.sessions.turns.pair import Pair
from slipstream.cli.local import LocalServices, free_address
from slipstream.client import Client
from slipstream.errors import SlipstreamError
from tests.system.conftest import PAPER_PAIR, load_of


@pytest.mark.essential
def test_a_healthy_process_has_run_turns_that_are_in_no_count_and_hold_nothing() -> None:
    address = free_address()
    pair = replace(PAPER_PAIR, orchestrator_flags=["--metrics-address", address])
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        assert not list(client.list_sessions())
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        counted = {each.name for each in families if each.type == "counter" for s in each.samples if s.value}
        for service in (local.verifier_address, local.draft_address):
            load = load_of(service)
            assert load.step_count > 4 and not load.held_page_count and not load.sequence_count
    of_drafts = {"slipstream_draft_verified_tokens", "slipstream_draft_accepted_tokens"}  # theirs, from any caller
    assert not [name for name in counted - of_drafts if "turn" in name or "token" in name or "spec_decode" in name]


@pytest.mark.parametrize("fault", ["fails", "hangs", "is refused"])
def test_what_goes_wrong_while_it_warms_up_ends_that_alone(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        async def encode(self, *_: Any) -> list[int]:
            if fault == "hangs":
                await asyncio.Event().wait()
            if fault == "is refused":
                raise SlipstreamError("a context of two tokens")
            raise ValueError("a tokenizer of its own kind")

    monkeypatch.setattr(warming, "_SECONDS", 0.05)
    caplog.set_level(logging.DEBUG)
    asyncio.run(warming.warm_up(cast(Pair, Broken())))
    assert ("warming up failed" in caplog.text) == (fault == "fails")
    assert ("ended early: a context of two tokens" in caplog.text) == (fault == "is refused")
    assert ("was cut" in caplog.text) == (fault == "hangs")
