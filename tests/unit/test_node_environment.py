import os
from pathlib import Path

import pytest

from tools import node_environment


def test_a_node_that_is_too_old_is_not_used() -> None:
    assert node_environment.is_new_enough("v20.19.0\n")
    assert node_environment.is_new_enough("v24.1.0")
    assert not node_environment.is_new_enough("v20.18.3")
    assert not node_environment.is_new_enough("v18.20.1")
    assert not node_environment.is_new_enough("")


def test_programs_are_linked_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "npm-cli.js"
    program.touch(mode=0o644)
    monkeypatch.setattr(node_environment, "machines_own", lambda: {"npm": program})
    for _ in range(2):  # a second time changes nothing
        node_environment.fill(tmp_path / "node")
    link = tmp_path / "node" / "bin" / "npm"
    assert link.resolve() == program
    assert os.access(link, os.X_OK)


def test_a_machine_without_node_has_no_programs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert node_environment.machines_own() is None
