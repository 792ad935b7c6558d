"""Ranks end with rank 0, and rank 0 with them: killed, frozen, failed or stopped, none is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.rank_processes import SIZE

SCRIPT = Path(__file__).parents[1] / "rank_processes.py"


@dataclass
class Group:
    """Rank 0's process, and all ranks in their order."""

    leader: subprocess.Popen[str]
    ranks: list[psutil.Process]

    def end(self) -> tuple[int, str]:
        """Rank 0's status and its last lines, once no process is left."""
        output = self.leader.communicate(timeout=60)[0]
        _, alive = psutil.wait_procs(self.ranks, timeout=30)
        assert not alive, f"left behind: {alive}"
        return self.leader.returncode, output


@contextmanager
def started(patience: float = 60.0, stderr: int = subprocess.STDOUT) -> Iterator[Group]:
    command = [sys.executable, str(SCRIPT), str(patience), "wait"]
    leader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    group = Group(leader, [])
    try:
        assert leader.stdout is not None
        pids: dict[int, int] = {}
        works = 0
        while len(pids) < SIZE or works < SIZE - 1:
            line = leader.stdout.readline()
            assert line, "ended"
            works += "works" in line
            if found := re.match(r"rank (\d) is (\d+)", line):
                pids[int(found[1])] = int(found[2])
        group.ranks = [psutil.Process(pids[rank]) for rank in range(SIZE)]
        yield group
    finally:
        for rank in group.ranks:
            with suppress(psutil.NoSuchProcess):
                rank.kill()
        leader.kill()
        leader.communicate()


def test_a_rank_that_is_killed_ends_the_group_with_one_line() -> None:
    with started() as group:
        group.ranks[2].kill()
        assert group.end() == (1, "verifier: rank 2 ended with signal 9 (SIGKILL): the group ends\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
def test_a_disk_that_is_full_of_logs_keeps_no_group_alive() -> None:
    with Path("/dev/full").open("w") as full, started(stderr=full.fileno()) as group:
        group.ranks[2].kill()
        assert group.end()[0] == 1


def test_a_rank_that_is_frozen_ends_the_group_with_one_line() -> None:
    with started(patience=2.0) as group:
        group.ranks[1].suspend()
        assert group.end() == (1, "verifier: rank 1 has not answered for 2 s: the group ends\n")


def test_a_group_that_is_frozen_as_a_whole_goes_on() -> None:
    with started(patience=3.0) as group:
        for rank in group.ranks:
            rank.suspend()
        with pytest.raises(psutil.TimeoutExpired):
            group.ranks[0].wait(4.5)
        for rank in group.ranks:
            rank.resume()
        with pytest.raises(psutil.TimeoutExpired):
            group.ranks[0].wait(1.5)
        group.leader.send_signal(signal.SIGTERM)
        assert group.end() == (0, "drained\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_rank_outlives_rank_0(number: signal.Signals) -> None:
    with started() as group:
        group.leader.send_signal(number)
        status, output = group.end()
        assert (status, output) == ((0, "drained\n") if number == signal.SIGTERM else (-9, output))


def test_ranks_leave_sigterm_to_rank_0() -> None:
    with started() as group:
        for rank in group.ranks[1:] + group.ranks[:1]:  # as systemd sends it: to every process
            rank.send_signal(signal.SIGTERM)
        assert group.end() == (0, "drained\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_rank_of_another_launcher_can_be_ended_while_it_waits_for_the_others(number: signal.Signals) -> None:
    place = {"RANK": "1", "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    command = [sys.executable, str(SCRIPT), "60", "wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | place) as rank:
        assert rank.stdout is not None
        while "works" not in rank.stdout.readline():
            assert rank.poll() is None
        rank.send_signal(number)
        assert rank.wait(60) == -number


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("refuse", "verifier: rank 1: the model is of a kind that ranks cannot share\n"),
        ("fail", "verifier: rank 1: RuntimeError('no memory')\n"),
    ],
)
def test_a_rank_that_fails_says_why(does: str, says: str) -> None:
    ended = subprocess.run([sys.executable, str(SCRIPT), "60", does], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert says in ended.stderr.splitlines(keepends=True)
