"""Two ranks share the embedded target, and no speculation changes a text. One of them dies or
freezes in the middle of a turn: the verifier ends with one line, and once it is back the text is
the undisturbed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
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
from slipstream.client import Client, Result, Settings, Structure
from tests.system.conftest import first_verify, verify_one, wait_for_health

SHARED = ["--tensor-parallel-size", "2", "--kv-memory-mib", "64", "--drain-seconds", "0"]
TOKEN_COUNT = 64
PROMPT = list(range(100, 164))
SETTINGS = Settings(max_token_count=160, ignore_end_tokens=True, temperature=0.8, seed=7)
SAMPLED = Settings(max_token_count=32, temperature=0.8, seed=11)
CROSSED = [
    replace(SAMPLED, temperature=0.0, top_logprob_count=2, prompt_logprobs=True),
    replace(SAMPLED, top_k=40, top_p=0.9, min_p=0.02, typical_p=0.9, top_n_sigma=3.0, top_logprob_count=1),
    replace(SAMPLED, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={300: 4.0}),
    replace(SAMPLED, stop_strings=["th", "e "], include_stop_in_text=True),
    replace(SAMPLED, structure=Structure(regex="[a-z]{3,8}( [a-z]{2,6}){2,5}")),
]
SPECULATION: list[dict[str, Any]] = [
    {"draft_length": 4},
    {"draft_length": 4, "proposer": "ngram"},
    {"draft_length": "adaptive"},
]


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalServices]:
    settings = PairSettings(
        target_flags=[*SHARED, "--rank-patience-seconds", "3"],
        orchestrator_flags=["--verifier-patience-seconds", "120"],
    )
    with LocalServices(settings) as local:
        yield local


def other_ranks(pid: int) -> list[psutil.Process]:
    """The ranks that a process has started. It may have started another one for structures."""
    return [child for child in psutil.Process(pid).children() if "verifier_service" in child.cmdline()]


def said_over_ranks(client: Client, speculation: dict[str, Any]) -> list[object]:
    """Two turns of a session, a fork and a second answer for each of the settings, all at once."""

    def facts(result: Result) -> object:
        return result.token_ids, result.text, result.finish_reason, result.logprobs, result.prompt_logprobs

    def ask(settings: Settings) -> list[object]:
        settings = replace(settings, **speculation)
        session = client.create_session(settings=settings)
        told = [session.send(question).wait() for question in ("What does os.path.join do?", "And json.dumps?")]
        fork = client.fork_session(session.session_id, 1)
        several = client.generate_choices(PROMPT, 2, settings)
        return [*map(facts, [*told, fork.send("And re.match?").wait(), *several])]

    with ThreadPoolExecutor(len(CROSSED)) as pool:
        return [*pool.map(ask, CROSSED)]


def test_no_speculation_changes_a_text_over_ranks(shared: LocalServices) -> None:
    with Client(shared.orchestrator_address) as client:
        expected = said_over_ranks(client, {"draft_length": 0})
        for speculation in SPECULATION:
            assert said_over_ranks(client, speculation) == expected, speculation


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
