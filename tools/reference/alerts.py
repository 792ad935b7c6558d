"""The alerts page: every rule of deploy/prometheus/alerts.yaml, with a link to its runbook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.reference.markdown import cell, generated, table

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"

_HEAD = """# Alerts

The rules are in [alerts.yaml](../../deploy/prometheus/alerts.yaml). `critical` means that turns
fail or are about to fail. `warning` means that turns are slow or soon will be. `info` reports an
event. No alert means that a text is wrong. The name of an alert leads to its runbook.
"""


def page() -> str:
    """Return the page."""
    columns = ["alert", "severity", "holds for", "meaning"]
    return generated("deploy/prometheus/alerts.yaml") + _HEAD + "\n" + table(columns, _rows())


def _rows() -> Iterator[list[str]]:
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
        name = rule["alert"]
        link = f"[{name}](../alerts.md#{name.lower()})"
        description = rule["annotations"]["description"]
        yield [link, rule["labels"]["severity"], str(rule.get("for", "")), cell(description)]
