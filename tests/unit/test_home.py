"""A user whose number has no name, and who has no HOME."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import StoreFormatError
from orchestrator.processes.settings import OrchestratorSettings
from slipstream.home import borrow_home, expanded, has_home

_NAMES = (
    "HOME",
    "USER",
    "LOGNAME",
    "LNAME",
    "USERNAME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "SLIPSTREAM_ORCHESTRATOR_STORE",
)


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in _NAMES:
        monkeypatch.setenv(name, "")  # so that what the test sets is taken back
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)


def settings_of(*flags: str) -> OrchestratorSettings:
    return OrchestratorSettings(_cli_parse_args=[*flags])


@pytest.mark.usefixtures("nameless")
def test_a_home_that_is_borrowed_is_private_and_not_in_the_current_folder(tmp_path: Path) -> None:
    assert not has_home()
    borrow_home()
    home = Path.home()
    assert home == Path(os.environ["HOME"]) and home.is_absolute() and tmp_path not in home.parents
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    borrow_home()
    assert Path.home() == home
    home.rmdir()


def test_a_home_that_is_relative_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "here")
    borrow_home()
    home = Path.home()
    assert home.is_absolute() and tmp_path not in home.parents
    home.rmdir()


def test_who_has_a_home_keeps_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    borrow_home()
    assert os.environ["HOME"] == str(tmp_path)


@pytest.mark.usefixtures("nameless")
def test_the_folder_of_a_user_who_is_not_there_is_a_path_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert expanded("~/model") == Path("~/model") and expanded("~no-such-user/model") == Path("~no-such-user/model")
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded("~/model") == Path("/home/me/model") and expanded(Path("model")) == Path("model")


@pytest.mark.usefixtures("nameless")
def test_without_a_home_an_orchestrator_has_to_be_told_where_sessions_go() -> None:
    with pytest.raises(StoreFormatError, match=r"no home folder.*--store.*XDG_STATE_HOME"):
        _ = settings_of().store_place
    assert settings_of("--store", "memory").store_place == "memory"
