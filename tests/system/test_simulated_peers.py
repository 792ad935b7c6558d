"""The benchmarks' simulated peers speak the wire with a real orchestrator."""

from __future__ import annotations

import argparse
from typing import Literal

import pytest

from benchmarks.scale import orchestrator
from slipstream.client import Client, Settings


@pytest.mark.parametrize("draft_length", [0, 4, "adaptive"])
def test_an_orchestrator_over_simulated_peers_answers(draft_length: int | Literal["adaptive"]) -> None:
    options = argparse.Namespace(acceptance=0.8, verify_ms=1.0, step_ms=0.2)
    with orchestrator(options, store="memory") as service, Client(service.address) as client:
        settings = Settings(temperature=0, draft_length=draft_length, max_token_count=40, proposer="draft")
        results = [client.generate([5, 6, 7], settings).wait()]
        while draft_length and not results[-1].accepted_token_count and len(results) < 100:  # a hint may be late
            results.append(client.generate([5, 6, 7], settings).wait())
    assert all(len(result.token_ids) == 40 for result in results)
    assert (results[-1].accepted_token_count > 0) == (draft_length != 0)
