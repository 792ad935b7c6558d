"""Two ranks share the embedded target. One of them dies or freezes in the middle of a turn: the
verifier ends with one line, and once it is back the text is the undisturbed one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import grpc
import psutil
import pytest

from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import Client, Settings
from tests.system.conftest import first_verify, verify_one, wait_for_health

RANKS = ["--tensor-parallel-size", "2", "--kv-memory-mib", "64", "--drain-seconds", "0"]
PROMPT = list(range(100, 164))
SETTINGS = Settings(max_token_count=160, ignore_end_tokens=True, temperature=0.8, seed=7)


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalServices]:
    settings = PairSettings(
        target_flags=[*RANKS, "--rank-patience-seconds", "3"],
        orchestrator_flags=["--verifier-patience-seconds", "120"],
    )
    with LocalServices(settings) as local:
        yield local


def other_ranks(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGKILL, "verifier: rank 1 ended with signal 9 (SIGKILL): the group ends"),
        (signal.SIGSTOP, "verifier: rank 1 has not answered for 3 s: the group ends"),
    ],
)
def test_a_rank_lost_in_mid_turn_changes_no_text(shared: LocalServices, number: signal.Signals, says: str) -> None:
    verifier = shared.services["verifier"]
    (rank,) = other_ranks(verifier.process.pid)
    with Client(shared.orchestrator_address) as client:
        expected = client.generate(PROMPT, SETTINGS).wait().token_ids
        reply = client.generate(PROMPT, SETTINGS)
        pieces = iter(reply)
        next(pieces)
        rank.send_signal(number)
        assert verifier.process.wait(60) == 1
        assert verifier.last_words() == says
        assert not rank.is_running()
        shared.start_verifier()
        for _ in pieces:
            pass
        assert reply.result.token_ids == expected


def test_torchrun_may_start_the_ranks() -> None:
    address, store = free_address(), free_address()
    launcher = ["--nnodes", "1", "--node-rank", "0", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    command = [sys.executable, "-P", "-m", "torch.distributed.run", *launcher, "--master-port", store.split(":")[1]]
    command += ["-m", "verifier_service", "--model", "embedded", "--address", address, *RANKS]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as torchrun,
        grpc.insecure_channel(address) as channel,
    ):
        ranks = []
        try:
            wait_for_health(channel)
            ranks = other_ranks(torchrun.pid)
            assert len(ranks) == 2
            assert verify_one(channel, first_verify(handle="0123456789abcdef", round=1, tail=[5, 6])).next_token
            torchrun.send_signal(signal.SIGTERM)
            assert torchrun.stderr is not None
            output = torchrun.stderr.read()
            assert "rank 0 INFO draining" in output
            assert not psutil.wait_procs(ranks, timeout=30)[1]
        finally:
            for process in ranks:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            torchrun.kill()
