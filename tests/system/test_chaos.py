"""Everything goes wrong for a while, in the smallest form; and a text that is not what it should be
is seen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from proving.chaos.faults import ALL
from proving.chaos.run import Gaps, Task, main
from slipstream.client import Client

pytestmark = pytest.mark.timeout(1800)


def test_no_token_differs_under_any_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "chaos.md"
    assert main(["--faults", "20", "--tokens", "48", "--report", str(report)]) == 0, capsys.readouterr().out
    written = report.read_text()
    assert "20 faults under 16 sessions" in written and " 0 complaints" in written
    for fault in ALL:
        assert f"| {fault.name} |" in written


def test_a_token_that_differs_is_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = Task.run

    def altered(task: Task, client: Client, rng: random.Random | None, watch: Gaps | None = None) -> list[list[int]]:
        said = run(task, client, rng, watch)
        if watch is not None:
            said[0][-1] += 1
        return said

    monkeypatch.setattr(Task, "run", altered)
    assert main(["--faults", "1", "--sessions", "2", "--tokens", "16"]) == 1
    assert "was answered otherwise" in capsys.readouterr().out
