"""The alerts, the dashboard and their runbook as files, and the metrics that they may ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from slipstream.telemetry import instruments
from slipstream.telemetry.instruments import Instrument, Kind

ROOT = Path(__file__).resolve().parents[1]
DASHBOARD = ROOT / "deploy" / "grafana" / "slipstream.json"
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
RULE_TESTS = [ROOT / "deploy" / "prometheus" / name for name in ("alerts.test.yaml", "alerts.week.test.yaml")]
RUNBOOK = ROOT / "docs" / "alerts.md"

INSTRUMENTS: dict[str, Instrument] = {
    f"{each.exposed_name}{suffix}": each
    for each in {*instruments.OF_THE_ORCHESTRATOR, *instruments.OF_A_MODEL_SERVICE, *instruments.OF_THE_GATEWAY}
    for suffix in (("_bucket", "_sum", "_count") if each.kind is Kind.HISTOGRAM else ("",))
}
"""By the names that queries have for them."""


def rule_tests() -> list[dict[str, Any]]:
    """The cases of all files with tests of rules."""
    return [case for file in RULE_TESTS for case in yaml.safe_load(file.read_text())["tests"]]


def alerting_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def panels() -> list[dict[str, Any]]:
    """Those with queries, as they are in the file that people import."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def names_in(text: str) -> set[str]:
    """The metrics' names in rules or queries; what a recording rule makes has a colon before it."""
    return set(re.findall(r"(?<![:\w])slipstream_\w+(?![\w]*:)", text))
