"""The size of the KV cache: as given, or what a share of a GPU leaves."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import pytest

from slipstream.engine.errors import UnsupportedModelError
from slipstream.given_settings import read_settings
from slipstream.hosting.kv_room import kv_memory_mib, room_mib
from verifier_service.settings import VerifierSettings

GIB = 2**30


def settings_of(monkeypatch: pytest.MonkeyPatch, *flags: str) -> VerifierSettings:
    monkeypatch.setattr(sys, "argv", ["verifier", "--model", "embedded", *flags])
    return read_settings(VerifierSettings, "verifier")


@pytest.mark.parametrize(
    ("share", "free", "total", "room"),
    [(0.9, 60 * GIB, 80 * GIB, 52 * 1024), (1.0, 10 * GIB, 80 * GIB, 10 * 1024), (0.5, 41 * GIB, 80 * GIB, 1024)],
)
def test_a_share_leaves_what_is_not_in_use(share: float, free: int, total: int, room: float) -> None:
    assert room_mib(share, free, total) == pytest.approx(room)


def test_a_share_that_is_in_use_already_is_refused_with_both_figures() -> None:
    with pytest.raises(
        UnsupportedModelError,
        match=r"--gpu-memory-utilization 0.5 of the device's 80.0 GiB leaves nothing .*: 45.0 GiB are in use",
    ):
        room_mib(0.5, 35 * GIB, 80 * GIB)


def test_the_cpu_has_the_memory_that_is_given_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert kv_memory_mib(settings_of(monkeypatch, "--kv-memory-mib", "7")) == 7
    assert not caplog.messages
    assert kv_memory_mib(settings_of(monkeypatch, "--gpu-memory-utilization", "0.9")) == 512
    assert caplog.messages == ["--gpu-memory-utilization has no effect on cpu: --kv-memory-mib sets the KV cache"]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            ["--gpu-memory-utilization", "0.9", "--kv-memory-mib", "7"],
            "verifier: --gpu-memory-utilization and --kv-memory-mib both size the KV cache: give one of them",
        ),
        (["--gpu-memory-utilization", "1.5"], "verifier: --gpu-memory-utilization should be less than or equal to 1"),
    ],
)
def test_wrong_shares_are_refused(monkeypatch: pytest.MonkeyPatch, flags: Sequence[str], line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        settings_of(monkeypatch, *flags)
    assert str(ended.value).startswith(line)
