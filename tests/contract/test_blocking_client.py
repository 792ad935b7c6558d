from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from tools import make_blocking_client as tool

BLOCKING = tool.CLIENT / "blocking"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the client's folder, which the tool then reads and writes."""
    folder = tmp_path / "client"
    shutil.copytree(tool.CLIENT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(tool, "CLIENT", folder)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    return folder


def test_the_blocking_client_is_what_the_asyncio_client_becomes() -> None:
    assert tool.main(["--check"]) == 0


def test_an_edit_in_either_client_is_found_and_made_good(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(Path(__file__).parents[2] / "pyproject.toml", copied.parent)
    for edited in (copied / "aio" / "reply.py", copied / "blocking" / "session.py"):
        edited.write_text(edited.read_text().replace("PeerError if", "ValueError if"))
        assert tool.main(["--check"]) == 1
        assert f"client/blocking/{edited.name}" in capsys.readouterr().out
        assert tool.main([]) == 0
        assert tool.main(["--check"]) == 0
    assert "ValueError if" in (copied / "blocking" / "reply.py").read_text()
    assert "ValueError if" not in (copied / "blocking" / "session.py").read_text()


@pytest.mark.parametrize("name", tool.MODULES)
def test_no_name_of_the_asyncio_client_is_left(name: str) -> None:
    tree = ast.parse((BLOCKING / f"{name}.py").read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not [each for each in names if each.startswith("Async") or each in ("asyncio", "aio", "aclose")]
