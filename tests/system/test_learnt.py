"""A second start goes on from what the first one learnt; texts stay what they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from slipstream.cli.local import LocalServices
from slipstream.client import Client, Settings
from tests.system.conftest import PAPER_PAIR

PROMPT = [5, 6, 7]


def answered(directory: Path) -> tuple[list[int], str]:
    """An answer's tokens, and what the orchestrator wrote to its log."""
    pair = replace(PAPER_PAIR, keeps_learnt=True, orchestrator_flags=["--learnt-directory", str(directory)])
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        tokens = client.generate(PROMPT, Settings(max_token_count=120)).wait().token_ids
        return tokens, local.services["orchestrator"].log.read_text()


def test_a_second_start_goes_on_from_what_the_first_has_learnt_and_says_the_same(tmp_path: Path) -> None:
    first, log = answered(tmp_path)
    assert "continuing with earlier measurements" not in log
    (file,) = tmp_path.iterdir()
    learnt = json.loads(file.read_text())["knowledge"]
    # How much was tried depends on how fast this machine was just then; that something was is what
    # is kept.
    assert learnt["acceptance"]["_all_tried"] > 0 and learnt["verifying"]["around"]["all"][1] > 0
    again, log = answered(tmp_path)
    assert (again, "continuing with earlier measurements" in log) == (first, True)
    file.write_text("no longer JSON")
    without, log = answered(tmp_path)
    assert (without, "are not used" in log) == (first, True)
