"""The alerts and the dashboard as files: complete, consistent, and about metrics that exist."""

from __future__ import annotations

import json
import re
from collections import defaultdict

from slipstream.telemetry import instruments
from tests.monitoring_files import DASHBOARD, INSTRUMENTS, RULES, RUNBOOK, alerting_rules, names_in, panels, rule_tests


def test_every_panel_says_what_it_shows_and_in_what_unit() -> None:
    shown = panels()
    assert len({panel["title"] for panel in shown}) == len(shown)
    for panel in shown:
        assert panel["title"] and panel["description"].endswith("."), panel["title"]
        assert "\n" not in panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"] and all(target["expr"] for target in panel["targets"])
        assert panel["datasource"]["uid"] == "${datasource}"


def test_no_panel_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + column, place["y"] + line) for column in range(place["w"]) for line in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_rules_and_panels_ask_for_metrics_that_exist_and_the_panels_for_all_of_them() -> None:
    asked = {target["expr"] for panel in panels() for target in panel["targets"]}
    shown = {name for expression in asked for name in names_in(expression)}
    ruled = {name for name in names_in(RULES.read_text()) if not name.startswith("slipstream_pair")}
    assert shown | ruled <= set(INSTRUMENTS)
    assert {INSTRUMENTS[name].name for name in shown} == {each.name for each in INSTRUMENTS.values()}


def test_the_rules_tests_have_their_metrics_with_the_labels_that_they_really_have() -> None:
    for case in rule_tests():
        for series in (each["series"] for each in case["input_series"]):
            name = series.partition("{")[0]
            if name.startswith("slipstream_"):
                labels = {*re.findall(r"(\w+)=", series)} - {"job", "instance", "le"}
                known = set(INSTRUMENTS[name].labels)
                assert labels <= known if INSTRUMENTS[name] is instruments.INFO else labels == known, series


def test_every_alert_fires_in_one_of_its_tests_and_is_quiet_in_another() -> None:
    found: dict[str, set[bool]] = defaultdict(set)
    for case in rule_tests():
        fires: dict[str, bool] = defaultdict(bool)
        for test in case["alert_rule_test"]:
            fires[test["alertname"]] |= bool(test["exp_alerts"])
        for name, once in fires.items():
            found[name].add(once)
    assert found == {rule["alert"]: {True, False} for rule in alerting_rules()}


def test_every_alert_says_how_bad_it_is_what_was_seen_and_what_to_do() -> None:
    headings = set(re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE))
    assert headings == {rule["alert"] for rule in alerting_rules()}
    for rule in alerting_rules():
        annotations = rule["annotations"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert "{{ $" in annotations["summary"] and "$value" in annotations["description"], rule["alert"]
        assert annotations["runbook_url"] == f"docs/alerts.md#{rule['alert'].lower()}"
