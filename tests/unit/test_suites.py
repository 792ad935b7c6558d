"""Committed results of suites that others wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def result(name: str) -> dict[str, Any]:
    found = json.loads((ROOT / "docs" / "suites" / f"{name}.json").read_text())
    assert isinstance(found, dict)
    return found


def test_scores_do_not_depend_on_speculation_or_on_a_draft_that_dies() -> None:
    found = result("lm-eval")
    off, on, killed = (found["conditions"][name] for name in ("off", "on", "draft killed"))
    assert found["equal"] and off["runs"] == on["runs"] == killed["runs"]
    assert off["counts"]["draft_token_count"] == 0
    assert 0 < killed["counts"]["accepted_token_count"] < on["counts"]["accepted_token_count"]


def test_aiperf_has_found_the_statistics_of_speculation() -> None:
    found = result("aiperf")["speculation"]
    rate = found["spec_decode_draft_acceptance_rate"]
    assert rate["unit"] == "%" and 0 < rate["avg"] <= 100
    assert found["pooled_spec_decode_acceptance_histogram"]


def test_guidellm_has_had_every_answer() -> None:
    found = result("guidellm")
    assert found["requests"]["successful"] > 0
    assert found["requests"]["errored"] == found["requests"]["incomplete"] == 0


def test_versions_of_a_suite_are_those_of_its_requirements() -> None:
    for name, package in (("lm-eval", "lm_eval"), ("aiperf", "aiperf"), ("guidellm", "guidellm")):
        requirements = (ROOT / "suites" / "requirements" / f"{name}.txt").read_text()
        pinned = re.search(rf"^{package}(\[\w+\])?==(.+)$", requirements, re.M)
        assert pinned is not None and pinned[2] == result(name)[package]
