"""How `tools/check_deploy.py` runs other programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import deploy_tools

FILE = deploy_tools.ROOT / "deploy" / "compose.yaml"


def test_a_tool_that_does_not_end_is_a_fault_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nsleep 600 &\nwait\n")
    hangs.chmod(0o755)
    monkeypatch.setenv("DEPLOY_TOOLS", str(tmp_path))
    monkeypatch.setattr(deploy_tools, "SECONDS", 0.2)
    reports = [
        deploy_tools.run_tool(FILE, "first", "hangs"),
        deploy_tools.run_tool(FILE, "second", "true", optional=True),
    ]
    assert deploy_tools.tell(reports) == 1
    assert capsys.readouterr().out.splitlines() == [
        "FAULT deploy/compose.yaml: second",
        "        first: hangs did not end within 0.2 s: does it wait for a network?",
    ]


def test_a_tool_that_cannot_be_run_is_a_fault_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").write_bytes(b"\x7fELF")
    (tmp_path / "broken").chmod(0o755)
    monkeypatch.setenv("DEPLOY_TOOLS", str(tmp_path))
    (fault,) = deploy_tools.run_tool(FILE, "first", "broken").faults
    assert fault == f"{tmp_path}/broken cannot be run: Exec format error"
