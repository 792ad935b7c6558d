"""Generated pages hold everything that they are made from, each thing once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from draft_service.settings import DraftSettings
from gateway.settings import GatewaySettings
from orchestrator.processes.settings import OrchestratorSettings
from slipstream.cli.serve_flags import FLAGS
from slipstream.reasons import Reason
from slipstream.v1 import orchestrator_pb2
from tests.documents import ROOT
from tools import stage_site
from tools.reference import api, benchmarks, commands, decisions, errors, serve_flags, settings
from verifier_service.settings import VerifierSettings


def first_cells(page: str) -> list[str]:
    """Return the first cell of each row of a page's tables."""
    return re.findall(r"^\| `([^`]+)` \|", page, re.M)


def test_the_settings_page_has_each_flag_of_each_kind_of_service() -> None:
    model_services = {*VerifierSettings.model_fields, *DraftSettings.model_fields}
    names = [*OrchestratorSettings.model_fields, *model_services, *GatewaySettings.model_fields]
    assert sorted(first_cells(settings.page())) == sorted(f"--{name.replace('_', '-')}" for name in names)


def test_the_settings_page_gives_bounds_choices_and_defaults() -> None:
    rows = {row.split("`")[1]: row for row in settings.page().splitlines() if row.startswith("| `--")}
    assert "| whole number, ≥ 1, ≤ 64 | `1` |" in rows["--process-count"]
    assert "`float32` or `bfloat16`" in rows["--dtype"]
    assert "| required |" in rows["--model"]
    assert "`127.0.0.1:50052` or `127.0.0.1:50053`" in settings.page().split("## The verifier and the draft")[1]


def test_the_commands_page_has_a_section_for_each_command_with_its_options() -> None:
    sections = dict(re.findall(r"^## slipstream ([^\n]+)\n(.*?)(?=^## |\Z)", commands.page(), re.M | re.S))
    known = {name: command for name, command in commands.all_commands().items() if not command.hidden}
    assert "session list" in known
    assert sections.keys() == known.keys()
    for name, command in known.items():
        listed = [one for one in command.params if not getattr(one, "hidden", False)]
        assert all(option in sections[name] for one in listed for option in one.opts if option.startswith("--"))


def test_the_page_of_serve_has_each_flag_once() -> None:
    assert first_cells(serve_flags.page()) == [flag.name for flag in FLAGS]


def test_the_errors_page_has_each_reason_once() -> None:
    assert sorted(first_cells(errors.page())) == sorted(map(str, Reason))


def test_the_api_page_has_each_method_and_explains_each_field_of_a_message() -> None:
    page = api.page()
    service = orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"]
    assert set(first_cells(page)) >= {method.name for method in service.methods}
    section = page.split("### GenerateRequest\n")[1].split("\n### ")[0]
    fields = [field.name for field in orchestrator_pb2.GenerateRequest.DESCRIPTOR.fields]
    assert first_cells(section) == fields
    assert not re.search(r"\|  \|$", section, re.M)


def test_a_decision_without_a_status_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "FOLDER", tmp_path)
    (tmp_path / "0001-first.md").write_text("# 1. First\n\n2026-11-20, accepted\n\nText.\n")
    assert "| 1 | [First](0001-first.md) | 2026-11-20 | accepted |" in decisions.page()
    (tmp_path / "0002-second.md").write_text("# 2. Second\n\nText.\n")
    with pytest.raises(ValueError, match=r"0002-second\.md"):
        decisions.page()


def test_a_benchmark_table_shows_chosen_columns_and_rows_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks, "FOLDER", tmp_path)
    kept = {
        "machine": "two cores",
        "commit": "abc",
        "date": "2026-11-20",
        "spread": "medians of five",
        "command": "x",
        "tables": [{"title": "t", "columns": ["T", "system", "speed"], "rows": [["0", "a|b", "1"], ["1", "c", "2"]]}],
    }
    (tmp_path / "speeds.json").write_text(json.dumps(kept))
    marked = "Before.\n<!-- table: speeds | system, speed | T=0 -->\nold\n<!-- end -->\nAfter.\n"
    (tmp_path / "README.md").write_text(marked)
    page = benchmarks.page(tmp_path / "README.md")
    assert "two cores; commit abc, 2026-11-20; medians of five." in page
    assert "| system | speed |\n| --- | ---: |\n| a\\|b | 1 |\n<!-- end -->\nAfter." in page
    assert "old" not in page


def test_the_site_has_all_pages_and_the_files_that_they_link_to() -> None:
    staged = {str(path.relative_to(ROOT)) for path in stage_site.staged_files()}
    assert staged >= {"README.md", "docs/architecture.md", "docs/pictures/trace.svg", "deploy/prometheus/alerts.yaml"}
    assert not any(name.startswith("tests/") for name in staged)
