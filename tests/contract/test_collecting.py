"""A real verifier that collects: what lies in its folder, and what happens to the folder's disk."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from safetensors import safe_open

from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service, ServiceFailedError
from slipstream.distilling.records import read_shard, read_shards, shard_paths
from slipstream.rpc.channel import open_channel
from tests.contract.test_runs import Stream
from tests.system.test_full_disk import small_disk
from tests.system.test_tracing import metrics_of

MODEL = "arithmetic:ends=0&context=8192"
PROMPT_LENGTH = 2
SMALL = "--collect-mib", "16"
"""Shards of two megabytes: 4,000 rows."""


class Verifier:
    """A verifier in a process of its own, and a stream of runs to it."""

    def __init__(self, flags: Sequence[str]) -> None:
        self.metrics = free_address()
        self.service = Service(
            "verifier",
            "verifier_service",
            free_address(),
            ["--model", MODEL, "--metrics-address", self.metrics, *flags],
            {},
        )

    async def connect(self) -> None:
        await asyncio.to_thread(self.service.wait_until_healthy)
        self.channel: grpc.aio.Channel = open_channel(self.service.address)
        self.stream = Stream(self)  # it needs the channel alone

    async def text(self, handle: str, length: int, number: int = 1, **more: bool) -> list[int]:
        """Return the tokens of a new run."""
        tokens: list[int] = []
        await self.stream.start(number, length, length, handle=handle, **more)
        async for result in self.stream.results():
            assert not result.HasField("error"), result.error
            tokens += result.tokens
            if result.end:
                return tokens
        raise AssertionError

    def totals(self) -> tuple[float, float, float, float]:
        """Return the verifier's metrics of collecting."""
        found = metrics_of(self.metrics)
        names = ("collecting", "collected_rows_total", "collect_dropped_rows_total", "collected_bytes_total")
        return tuple(found[f"slipstream_{name}"][()] for name in names)  # type: ignore[return-value]

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(6000):
            if holds():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(self.service.log_tail())


@asynccontextmanager
async def verifier(folder: Path, *flags: str, text: bool = True, share: float = 1.0) -> AsyncIterator[Verifier]:
    collect = ["--collect", str(folder), "--collect-share", str(share), *(["--collect-text"] if text else [])]
    made = Verifier([*collect, *flags])
    try:
        await made.connect()
        yield made
        await made.channel.close()
    finally:
        await asyncio.to_thread(made.service.stop)


async def test_shards_hold_what_was_said_and_belong_to_the_verifiers_user(tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    async with verifier(folder) as it:
        texts = {handle: await it.text(handle * 32, 300) for handle in "ab"}
        assert it.totals()[0] == 1
    (shard,) = shard_paths(folder)
    assert [shard.stat().st_mode & 0o777, folder.stat().st_mode & 0o777] == [0o600, 0o700]
    facts, records, began, ended = read_shard(shard)
    assert (facts.name, facts.vocabulary_size) == (MODEL, 259)
    assert began <= ended
    assert {tuple(record.tokens) for record in records} == {(5, 6, *text) for text in texts.values()}
    for record in records:
        assert record.positions.tolist() == [*range(PROMPT_LENGTH, 300)]
        assert record.top_ids[:, 0].tolist() == record.chosen.tolist() == record.tokens[PROMPT_LENGTH:].tolist()
        assert np.exp(record.top_logprobs).sum(axis=1).max() <= 1.001


async def test_without_the_second_opt_in_no_token_id_is_on_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    async with verifier(folder, text=False) as it:
        await it.text("a" * 32, 100)
    (shard,) = shard_paths(folder)
    with safe_open(shard, framework="numpy") as file:
        assert {*file.keys()} == {"rows", "top_logprobs", "outcomes"}
        assert file.metadata()["has_text"] == "0"
        assert len(file.get_tensor("rows")) == 98


async def test_what_may_not_be_collected_is_not_and_neither_is_what_follows_on_its_handle(tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    async with verifier(folder) as it:
        private = await it.text("a" * 32, 50, do_not_collect=True)
        assert await it.text("a" * 32, 60, number=2) == [*private, *(await it.text("b" * 32, 60))[len(private) :]]
    (record,) = read_shards(folder)
    assert len(record.positions) == 58


async def test_a_folder_stays_within_its_bound_and_metrics_say_what_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    folder.mkdir(mode=0o700)
    for number in range(1, 16):  # as if written before
        (folder / f"{number:06d}.safetensors").write_bytes(bytes(2**20))
    async with verifier(folder, *SMALL) as it:
        await it.text("a" * 32, 8000)
        await it.until(lambda: it.totals()[3] > 0)
        collecting, rows, _, byte_count = it.totals()
    paths = shard_paths(folder)
    assert sum(path.stat().st_size for path in paths) <= 16 * 2**20
    assert paths[0].stem > "000001"
    written = read_shard(folder / "000016.safetensors")
    assert collecting == 1 and rows == sum(len(record.positions) for record in written.records)
    assert byte_count == (folder / "000016.safetensors").stat().st_size


async def test_a_verifier_that_is_killed_leaves_whole_shards_and_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    async with verifier(folder, *SMALL) as it:
        await it.text("a" * 32, 8000)
        await it.stream.start(1, 8000, 8000, handle="b" * 32)
        await it.until(lambda: bool(shard_paths(folder)))
        os.kill(it.service.process.pid, signal.SIGKILL)
        await asyncio.to_thread(it.service.process.wait)
    before = [*read_shards(folder)]
    assert sum(len(record.positions) for record in before) > 3000
    async with verifier(folder) as it:
        await it.text("c" * 32, 50)
    assert len([*read_shards(folder)]) == len(before) + 1


async def test_a_full_disk_ends_collecting_and_no_text(tmp_path: Path) -> None:
    with ExitStack() as stack:
        disk = tmp_path / "disk"
        disk.mkdir()
        stack.enter_context(small_disk(disk))
        async with verifier(disk / "collected", *SMALL) as it:
            text = await it.text("a" * 32, 8000)  # its first shard is larger than the disk
            await stopped(it)
            assert await it.text("b" * 32, 8000) == text
            collecting, rows, dropped, byte_count = it.totals()
            assert (collecting, rows, byte_count) == (0, 0, 0) and 3000 < dropped <= 7998


async def test_a_folder_that_vanishes_ends_collecting_and_no_text(tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    async with verifier(folder, *SMALL) as it:
        text = await it.text("a" * 32, 8000)
        await it.until(lambda: bool(shard_paths(folder)))
        await asyncio.to_thread(shutil.rmtree, folder)
        assert await it.text("b" * 32, 8000) == text
        await stopped(it)
        assert not folder.exists()


async def stopped(it: Verifier) -> None:
    """Collecting has stopped, with one warning."""
    await it.until(lambda: it.totals()[0] == 0)
    log = it.service.log.read_text()
    assert log.count("has stopped, and serving goes on") == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--collect", "OPEN"], "OPEN has mode 755 and belongs to user"),
        (["--collect", "FILE"], "FILE cannot be written: File exists"),
        (["--collect-text"], "--collect DIR is needed with --collect-text"),
        (
            ["--collect", "NEW", "--engine", "vllm", "--engine-address", "http://127.0.0.1:1"],
            "--engine vllm tells a few",
        ),
        (["--collect", "NEW", "--collect-share", "0"], "--collect-share should be greater than 0"),
        (["--collect", "NEW", "--collect-mib", "15"], "--collect-mib should be greater than or equal to 16"),
    ],
)
def test_what_cannot_be_collected_is_refused_at_the_start(flags: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "OPEN").mkdir(mode=0o755)
    (tmp_path / "OPEN").chmod(0o755)
    (tmp_path / "FILE").touch()
    names = {name: str(tmp_path / name) for name in ("OPEN", "FILE", "NEW")}
    service = Service(
        "verifier",
        "verifier_service",
        free_address(),
        ["--model", MODEL, *[names.get(flag, flag) for flag in flags]],
        {},
    )
    try:
        with pytest.raises(ServiceFailedError, match="verifier: ") as failure:
            service.wait_until_healthy()
        for name, path in names.items():
            said = said.replace(name, path)
        assert said in str(failure.value)
    finally:
        service.stop()


async def test_a_folder_has_one_verifier(tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    async with verifier(folder):
        with pytest.raises(ServiceFailedError, match="is being written by another process"):
            async with verifier(folder):
                pass
