"""Stages of a start: progress is told now and then, and the newest one is found in a log."""

from __future__ import annotations

from slipstream.stages import DOWNLOADING, LOADING, ByteProgress, last_stage


def test_bytes_are_told_once_a_second_and_at_the_end() -> None:
    now, told = [0.0], list[str]()
    progress = ByteProgress(f"{DOWNLOADING} org/name", told.append, clock=lambda: now[0])
    progress.reach(0, 5_000_000)
    for tenth in range(26):
        now[0] = tenth / 10
        progress.reach(tenth * 100_000 + 100_000, 2_600_000)
    assert told == [f"{DOWNLOADING} org/name: {count} of 2.6 MB" for count in ("0.1", "1.1", "2.1", "2.6")]
    assert last_stage([f"12:00:01 verifier INFO {told[1]}"]) == told[1]


def test_a_stage_that_is_quick_tells_nothing() -> None:
    now, told = [0.0], list[str]()
    progress = ByteProgress(LOADING, told.append, quiet_seconds=1.0, clock=lambda: now[0])
    progress.reach(1e9, 4e9)
    now[0] = 0.9
    progress.reach(4e9, 4e9)
    assert told == []
    now[0] = 1.0
    progress.reach(2e9, 4e9)
    progress.reach(4e9, 4e9)
    assert told == [f"{LOADING}: 2.0 of 4.0 GB", f"{LOADING}: 4.0 of 4.0 GB"]
