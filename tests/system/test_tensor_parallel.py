"""Two ranks share the embedded target. One of them dies or freezes in the middle of a turn: the
verifier ends with one line, and once it is back the text is the undisturbed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import grpc
import numpy as np
import psutil
import pytest

from proving.disturbances import OF_RANKS
from proving.pairs import RANDOM_WEIGHTS, RANKS, pair_named, prepare
from proving.prompts import PromptSource
from proving.reference import PlainDecoder
from proving.schedule import LEAST_PROMPTS, Cell, Turn, Wave
from proving.serving import CellRun
from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import Client, Settings
from tests.system.conftest import first_verify, verify_one, wait_for_health

SHARED = ["--tensor-parallel-size", "2", "--kv-memory-mib", "64", "--drain-seconds", "0"]
TOKEN_COUNT = 64
PROMPT = list(range(100, 164))
SETTINGS = Settings(max_token_count=160, ignore_end_tokens=True, temperature=0.8, seed=7)


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalServices]:
    settings = PairSettings(
        target_flags=[*SHARED, "--rank-patience-seconds", "3"],
        orchestrator_flags=["--verifier-patience-seconds", "120"],
    )
    with LocalServices(settings) as local:
        yield local


def other_ranks(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children()


def test_a_rank_frozen_in_mid_turn_changes_no_text(shared: LocalServices) -> None:
    verifier = shared.services["verifier"]
    (rank,) = other_ranks(verifier.process.pid)
    with Client(shared.orchestrator_address) as client:
        expected = client.generate(PROMPT, SETTINGS).wait().token_ids
        reply = client.generate(PROMPT, SETTINGS)
        pieces = iter(reply)
        next(pieces)
        rank.suspend()
        assert verifier.process.wait(60) == 1
        assert verifier.last_words() == "verifier: rank 1 has not answered for 3 s: the group ends"
        assert not rank.is_running()
        shared.start_verifier()
        for _ in pieces:
            pass
        assert reply.result.token_ids == expected


def test_a_rank_killed_in_a_cell_of_the_proof_changes_no_bit(tmp_path: Path) -> None:
    prepare(tmp_path, RANKS)
    prompts = PromptSource(3).draw(LEAST_PROMPTS)[:4]
    turns = [Turn(prompt, 0.8 * (prompt % 2), seed=prompt) for prompt in range(len(prompts))]
    killed = OF_RANKS[0]
    cell = Cell(0, RANDOM_WEIGHTS, "bfloat16", False, [Wave(turns, 2, [killed])])
    run = CellRun(cell, prompts, TOKEN_COUNT, 0, tmp_path, RANKS, lambda _: None)
    run.run()
    assert run.account.strikes == {killed.name: 1} and run.account.complaints == []
    with patch.dict(os.environ):  # where this process is rank 0 for a while
        decoder = PlainDecoder(pair_named(cell.pair, tmp_path, cell.dtype, RANKS), max(map(len, prompts)) + TOKEN_COUNT)
        plain = decoder.decode(prompts, turns, TOKEN_COUNT)
        decoder.close()
    assert np.array_equal(run.generated.tokens, plain.tokens)
    assert np.array_equal(run.generated.logprobs.view(np.int32), plain.logprobs.view(np.int32))


def test_torchrun_may_start_the_ranks() -> None:
    address, store = free_address(), free_address()
    launcher = ["--nnodes", "1", "--node-rank", "0", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    command = [sys.executable, "-P", "-m", "torch.distributed.run", *launcher, "--master-port", store.split(":")[1]]
    command += ["-m", "verifier_service", "--model", "embedded", "--address", address, *SHARED]
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
