"""A disk that is full under the sessions: the orchestrator says so to health checks, in metrics and
to every caller, and comes back by itself once there is room."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import Client, PeerError, Settings
from tests.system.conftest import PAPER_PAIR, wait_for_health
from tests.system.test_tracing import metrics_of

Filling = Callable[[LocalServices], None]
SHORT = Settings(max_token_count=3, draft_length=0)


@contextmanager
def small_disk(folder: Path) -> Iterator[tuple[Filling, Filling]]:
    """A file system of two megabytes, and what fills and empties it. Skips where none can be
    mounted."""
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("no file system can be mounted here")
    filler = folder / "filler"

    def fill(_: LocalServices) -> None:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        assert not shutil.disk_usage(folder).free

    try:
        yield fill, lambda _: filler.unlink()
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def limited_files(folder: Path) -> Iterator[tuple[Filling, Filling]]:
    """The system lets no file of the orchestrator's grow beyond what its write-ahead log has."""

    def limit(local: LocalServices, size: int) -> None:
        pid = local.services["orchestrator"].process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))

    yield lambda local: limit(local, 150_000), lambda local: limit(local, resource.RLIM_INFINITY)


def reason_of_last(ask: Callable[[], object]) -> str:
    """Why a question that is asked again and again is refused in the end."""
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            ask()
    except PeerError as error:
        return error.reason
    return ""


@pytest.mark.parametrize("making", [small_disk, limited_files])
def test_a_full_disk_is_told_to_everyone_and_gone_once_there_is_room(
    making: Callable[[Path], AbstractContextManager[tuple[Filling, Filling]]], tmp_path: Path
) -> None:
    metrics = free_address()
    flags = ["--store", str(tmp_path / "disk" / "sessions.db"), "--metrics-address", metrics]
    (tmp_path / "disk").mkdir()
    pair = PairSettings(PAPER_PAIR.target, "", orchestrator_flags=flags)
    with (
        making(tmp_path / "disk") as (fill, empty),
        LocalServices(pair) as local,
        Client(local.orchestrator_address, reconnect=0.0) as client,
        grpc.insecure_channel(local.orchestrator_address) as channel,
    ):
        chat = client.chat()
        assert chat.send("hello", SHORT).wait().token_ids
        assert metrics_of(metrics)["slipstream_store_writable"] == {(): 1}
        fill(local)
        for size in (40_000, 10):  # what the files have room for is written still
            assert reason_of_last(lambda size=size: client.chat(system="x" * size)) == "STORE_UNAVAILABLE"  # type: ignore[misc]
        wait_for_health(channel, serving=False)
        with pytest.raises(PeerError) as refused:
            chat.send("x" * 1000, SHORT).wait()
        assert refused.value.reason == "STORE_UNAVAILABLE"
        shown = metrics_of(metrics)
        assert shown["slipstream_store_writable"] == {(): 0}
        calls = shown["slipstream_calls_refused_total"]
        assert {("CreateSession", "STORE_UNAVAILABLE"), ("SendMessage", "STORE_UNAVAILABLE")} <= set(calls)
        assert local.services["orchestrator"].process.poll() is None
        empty(local)
        wait_for_health(channel)
        assert chat.send("again", SHORT).wait().token_ids
        assert metrics_of(metrics)["slipstream_store_writable"] == {(): 1}


def test_refusals_of_every_call_are_counted_by_method_and_reason(tmp_path: Path) -> None:
    metrics = free_address()
    pair = PairSettings(PAPER_PAIR.target, "", orchestrator_flags=["--metrics-address", metrics])
    with LocalServices(pair) as local, Client(local.orchestrator_address, reconnect=0.0) as client:
        asks: dict[tuple[str, str], Callable[[], object]] = {
            ("GetSession", "SESSION_NOT_FOUND"): lambda: client.chat(session_id="no"),
            ("DeleteSession", "SESSION_NOT_FOUND"): lambda: client.delete_session("no"),
            ("ExportSession", "SESSION_NOT_FOUND"): lambda: client.export_session("no"),
            ("WatchTurn", "SESSION_NOT_FOUND"): lambda: client.watch("no", 1).wait(),
            ("CancelTurn", "SESSION_NOT_FOUND"): lambda: client.cancel("no", 1),
            ("GetTurnTraces", "SESSION_NOT_FOUND"): lambda: client.turn_traces("no"),
            ("CreateSession", "INVALID_FIELDS"): lambda: client.chat(system=""),
            ("Generate", "INVALID_FIELDS"): lambda: client.generate("x", Settings(temperature=-1.0)).wait(),
        }
        for (_, reason), ask in asks.items():
            with pytest.raises(PeerError) as refused:
                ask()
            assert refused.value.reason == reason
        assert metrics_of(metrics)["slipstream_calls_refused_total"] == dict.fromkeys(asks, 1)
