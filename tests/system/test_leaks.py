"""Turns that are left leave nothing behind, in the smallest form; and what is left behind is
seen."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from rich.progress import Progress

from proving.leaks import run as leaks
from proving.leaks.census import Census, Count
from proving.leaks.leaving import WAYS, Scene
from slipstream.cli.local import LocalServices


@pytest.fixture(scope="module")
def scene() -> Iterator[tuple[LocalServices, Census]]:
    with leaks.served() as local_and_census:
        yield local_and_census


def test_a_hundred_abandoned_turns_leave_nothing(scene: tuple[LocalServices, Census]) -> None:
    outcome = leaks.leave_many(*scene, 100, 3, Progress(disable=True))
    assert not outcome.complaints
    assert set(outcome.left) == {way.__name__ for way in WAYS}


def test_a_leaked_stream_is_seen(scene: tuple[LocalServices, Census], monkeypatch: pytest.MonkeyPatch) -> None:
    channels: list[grpc.Channel] = []
    calls: list[Any] = []

    async def stay(scene: Scene) -> None:
        channel = grpc.insecure_channel(scene.local.orchestrator_address)
        channels.append(channel)
        chat: Any = channel.stream_stream("/slipstream.v1.OrchestratorService/Chat")
        calls.append(chat(iter(queue.SimpleQueue[bytes]().get, b"")))  # nothing ever comes, nor an end

    monkeypatch.setattr(leaks, "_SETTLE_SECONDS", 15.0)
    monkeypatch.setattr(leaks, "_WARM_CANCELS", 0)
    monkeypatch.setattr(leaks, "WAYS", (stay,))
    outcome = leaks.leave_many(*scene, 3, 3, Progress(disable=True))
    for channel in channels:
        channel.close()
    left = [complaint.partition(":")[0] for complaint in outcome.complaints]
    assert left == ["of the orchestrator there are left"], outcome.complaints
    assert "tasks" in outcome.complaints[0] and "sockets" in outcome.complaints[0]


def test_a_soak_of_seconds_ends_with_nothing_held(scene: tuple[LocalServices, Census]) -> None:
    outcome = leaks.soak(*scene, 3.0, 8, 3, Progress(disable=True))
    assert outcome.turn_count
    assert not [complaint for complaint in outcome.complaints if "grows" not in complaint], (
        "three seconds tell no slope"
    )


def test_a_count_says_what_there_is_more_of() -> None:
    before = Count(descriptors=10, sockets=3, threads=7, tasks=20, pages=0, sequences=0)
    after = Count(descriptors=12, sockets=2, threads=7, tasks=21, pages=4, sequences=1)
    assert after.over(before) == {"descriptors": 2, "tasks": 1, "pages": 4, "sequences": 1}


def test_memory_that_grows_has_a_slope() -> None:
    outcome = leaks.Outcome(memory={"flat": [(10.0 * i, 2**20) for i in range(9)]})
    outcome.memory["grows"] = [(10.0 * i, 2**20 * max(i, 3)) for i in range(9)]
    slopes = outcome.slopes()
    assert slopes["flat"] == pytest.approx(0.0)
    assert slopes["grows"] == pytest.approx(6.0)
