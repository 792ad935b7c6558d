"""A draft whose weights are quantised changes no text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings

PROMPT = [*range(100, 140)]


def test_a_draft_that_is_quantised_at_load_guesses_and_changes_no_text() -> None:
    pytest.importorskip("torchao")
    settings = Settings(seed=5, max_token_count=40, ignore_end_tokens=True)
    with (
        LocalServices(PairSettings(draft_flags=["--quantize", "int8"])) as local,
        Client(local.orchestrator_address) as client,
    ):
        for temperature in (0.0, 0.8):
            plain, drafted = (
                client.generate(PROMPT, replace(settings, temperature=temperature, draft_length=length)).wait()
                for length in (0, 4)
            )
            assert drafted.token_ids == plain.token_ids
            assert drafted.draft_count > 0
