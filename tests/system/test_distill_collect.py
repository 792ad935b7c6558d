"""`slipstream distill collect`: a target answers a file of prompts, and its choices are kept."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from slipstream.cli.local import LocalServices
from slipstream.client import Client, Settings
from slipstream.distilling.asked import read_asked
from slipstream.distilling.records import SequenceRecord, read_shards, shard_paths
from tests.commands import SLIPSTREAM, run, wait_until_none_left
from tests.system.conftest import PAPER_PAIR
from tests.system.test_full_disk import small_disk
from tests.system.test_tracing import metrics_of

TARGET = "arithmetic:ends=0"
COLLECT = ("distill", "collect", "--target", TARGET, "--max-tokens", "20")


def prompts_in(folder: Path, *texts: str) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return str(path)


def prompt_lengths(records: list[SequenceRecord]) -> list[int]:
    return sorted(int(record.positions[0]) for record in records)


@pytest.mark.essential
def test_what_was_answered_is_collected_and_what_was_not_is_asked_again(tmp_path: Path) -> None:
    out = tmp_path / "collected"
    prompts = prompts_in(tmp_path, "a" * 5, "b" * 9000, "c" * 7)
    first = run(*COLLECT, "--prompts", prompts, "--out", str(out))
    assert first.returncode == 1
    assert first.stdout == "answered 2 of 3 prompts with 40 tokens\n"
    assert re.search(r"^line 2: .*8192", first.stderr, re.M) and "no answer to lines 2: see above" in first.stderr
    records = [*read_shards(out)]
    assert len(records) == 2 and all(len(record.positions) == 20 for record in records)
    short, long = prompt_lengths(records)
    assert long == short + 2
    prompts = prompts_in(tmp_path, "a" * 5, "b" * 9, "c" * 7)
    second = run(*COLLECT, "--prompts", prompts, "--out", str(out))
    assert second.returncode == 0, second.stderr
    assert second.stdout == "answered 1 of 1 prompts with 20 tokens\n"
    assert "2 of 3 prompts were answered before" in second.stderr
    assert prompt_lengths([*read_shards(out)]) == [short, long, long + 2]
    third = run(*COLLECT, "--prompts", prompts, "--out", str(out))
    assert (third.returncode, third.stdout) == (0, "")
    assert "3 of 3 prompts were answered before" in third.stderr


def test_answers_whose_shards_were_deleted_are_asked_again(tmp_path: Path) -> None:
    out, prompts = tmp_path / "collected", prompts_in(tmp_path, "a" * 5, "b" * 9)
    for _ in range(2):
        ended = run(*COLLECT, "--prompts", prompts, "--out", str(out), http_proxy="http://127.0.0.1:9")
        assert (ended.returncode, ended.stdout) == (0, "answered 2 of 2 prompts with 40 tokens\n"), ended.stderr
        assert f"the answers to 2 of 2 prompts are in {out}" in ended.stderr
        for path in shard_paths(out):
            path.unlink()


def verifier_of(command: subprocess.Popen[str], step_count: int) -> psutil.Process:
    """Return the verifier that a command has started, once it has made so many steps."""
    for _ in range(6000):
        assert command.poll() is None
        for child in psutil.Process(command.pid).children(recursive=True):
            with suppress(psutil.Error, OSError):
                if "verifier_service" in (line := child.cmdline()):
                    metrics = metrics_of(line[line.index("--metrics-address") + 1])
                    if sum(metrics["slipstream_engine_steps_total"].values()) >= step_count:
                        return child
        time.sleep(0.02)
    raise AssertionError("no verifier has made steps")


@pytest.mark.parametrize("ending", ["the command is interrupted", "the verifier is killed"])
def test_a_collection_that_ends_early_goes_on_without_a_loss(ending: str, tmp_path: Path) -> None:
    out, count = tmp_path / "collected", 60
    prompts = prompts_in(tmp_path, *("x" * (number + 1) for number in range(count)))
    command = [*COLLECT, "--prompts", prompts, "--out", str(out), "--concurrency", "1"]
    command[command.index(TARGET)] = f"{TARGET}&forward_ms=3"
    with subprocess.Popen([*SLIPSTREAM, *command], stderr=subprocess.PIPE, text=True) as collecting:
        verifier = verifier_of(collecting, 200)
        if ending == "the verifier is killed":
            verifier.kill()
        else:
            collecting.send_signal(signal.SIGINT)
        _, said = collecting.communicate(timeout=120)
    wait_until_none_left()
    assert collecting.returncode and "Traceback" not in said
    if ending == "the verifier is killed":
        assert re.search(r"^slipstream: the verifier has ended, or .*\. Run the command again to go on$", said, re.M)
    before = len([*read_shards(out)]) if shard_paths(out) else 0
    ended = run(*command)
    assert ended.returncode == 0, ended.stderr
    known = re.search(r"(\d+) of 60 prompts were answered before", ended.stderr)
    answered = int(known[1]) if known else 0
    assert before in (answered, answered + 1)  # one was in work
    assert answered > 5 or ending == "the verifier is killed"
    assert f"answered {count - answered} of {count - answered} prompts" in ended.stdout
    lengths = {*prompt_lengths([*read_shards(out)])}
    assert lengths == {*range(min(lengths), min(lengths) + count)}


def test_what_a_full_disk_has_lost_is_said_and_asked_again(tmp_path: Path) -> None:
    prompts = prompts_in(tmp_path, *("x" * (number + 1) for number in range(60)))
    (disk := tmp_path / "disk").mkdir()
    with small_disk(disk):
        filler, out = disk / "filler", disk / "collected"
        filler.write_bytes(bytes(shutil.disk_usage(disk).free - 100_000))  # the folder and its lock have room
        command = [*COLLECT, "--prompts", prompts, "--out", str(out)]
        first = run(*command)
        assert first.returncode == 1 and "Traceback" not in first.stderr
        assert re.search(r"the verifier has (not written the answers to lines 1, 2|stopped collecting)", first.stderr)
        assert "the answers to 0 of 60 prompts are in" in first.stderr
        filler.unlink()
        second = run(*command)
        assert (second.returncode, second.stdout) == (0, "answered 60 of 60 prompts with 1200 tokens\n"), second.stderr
        assert len([*read_shards(out)]) == 60


def test_answers_that_newer_ones_push_out_are_said(tmp_path: Path) -> None:
    prompts = prompts_in(tmp_path, *("x" * (number + 1) for number in range(40)))
    command = [*COLLECT, "--prompts", prompts, "--out", str(tmp_path / "collected"), "--mib", "16"]
    command[command.index("20")] = "1000"
    ended = run(*command)
    assert ended.returncode == 1
    assert re.search(r"newer answers have pushed out those to lines 1, 2, .*: give more --mib", ended.stderr)


def test_a_server_answers_and_its_verifier_collects(tmp_path: Path) -> None:
    out = tmp_path / "collected"
    flags = [*PAPER_PAIR.target_flags, "--collect", str(out), "--collect-text", "--collect-share", "1"]
    prompts = prompts_in(tmp_path, "a" * 5, "b" * 9)
    with LocalServices(replace(PAPER_PAIR, target_flags=flags)) as services:
        ended = run(
            *("distill", "collect", "--prompts", prompts, "--max-tokens", "30"),
            *("--address", services.orchestrator_address),
        )
    assert (ended.returncode, ended.stdout) == (0, "answered 2 of 2 prompts with 60 tokens\n"), ended.stderr
    records = [*read_shards(out)]
    assert sum(len(record.positions) for record in records) == 60


@pytest.mark.parametrize(
    ("share", "status", "said"),
    [
        ("", 1, "the server's verifier collects nothing: start it with --collect DIR"),
        ("0.5", 0, "the verifier collects a share of 0.5 of the answers: --collect-share 1 keeps all"),
    ],
)
def test_a_server_that_does_not_collect_all_says_so(share: str, status: int, said: str, tmp_path: Path) -> None:
    collect = ["--collect", str(tmp_path / "out"), "--collect-text", "--collect-share", share] if share else []
    with LocalServices(replace(PAPER_PAIR, target_flags=[*PAPER_PAIR.target_flags, *collect])) as services:
        ended = run(
            *("distill", "collect", "--prompts", prompts_in(tmp_path, "a"), "--max-tokens", "5"),
            *("--address", services.orchestrator_address),
        )
    assert ended.returncode == status and said in ended.stderr
    assert ("answered" in ended.stdout) == bool(share)


def test_answers_are_sampled_as_the_traffic_is_and_the_folder_says_how(tmp_path: Path) -> None:
    out, prompts = tmp_path / "collected", prompts_in(tmp_path, "a" * 5, "b" * 9)
    command = [*COLLECT, "--prompts", prompts, "--out", str(out), "--seed", "5"]
    hot = [*command, "--temperature", "30"]
    filtered = [*hot, "--sampling", "top-k=1", "--sampling", "min_p=0.01"]
    for arguments in (hot, filtered, filtered):
        ended = run(*arguments)
        assert ended.returncode == 0, ended.stderr
    assert "2 of 2 prompts were answered before" in ended.stderr
    likeliest = [bool((record.chosen == record.top_ids[:, 0]).all()) for record in read_shards(out)]
    assert likeliest == [False, False, True, True]
    assert (out / ".asked").stat().st_mode & 0o777 == 0o600
    said = {"target": TARGET, "prompts": prompts, "max_tokens": 20, "seed": 5}
    assert read_asked(out) == [
        said | {"sampling": {"temperature": 30.0}},
        said | {"sampling": {"top_k": 1, "min_p": 0.01, "temperature": 30.0}},
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--temperature", "-1"], "--temperature must be 0 (greedy) or from 1e-06 to 100, but is -1"),
        (["--sampling", "top_p=1.5"], "--sampling top_p must be above 0 and at most 1, but is 1.5"),
        (["--target", TARGET], "--target and --out go together"),
        (["--out", "x"], "--target and --out go together"),
        (["--target", TARGET, "--out", "OPEN"], "has mode 755"),
        (["--target", "no/such/model/here", "--out", "x"], "--target no/such/model/here"),
    ],
)
def test_wrong_options_are_refused_in_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    known = [argument.replace("OPEN", str(tmp_path / "open")) for argument in arguments]
    ended = run("distill", "collect", "--prompts", prompts_in(tmp_path, "a"), *known)
    assert ended.returncode == 1
    assert said in ended.stderr and "Traceback" not in ended.stderr
    assert "the answers to" not in ended.stderr


@pytest.mark.parametrize("settings", [Settings(), Settings(ratio=True, temperature=0.8, seed=1, draft_length=3)])
def test_a_session_that_may_not_be_collected_is_not(settings: Settings, tmp_path: Path) -> None:
    """Nor is a later turn of it whose message does not say so."""
    out = tmp_path / "collected"
    flags = [*PAPER_PAIR.target_flags, "--collect", str(out), "--collect-text", "--collect-share", "1"]
    settings = replace(settings, max_token_count=10)
    with (
        LocalServices(replace(PAPER_PAIR, target_flags=flags)) as services,
        Client(services.orchestrator_address) as client,
    ):
        private = client.create_session(settings=replace(settings, do_not_collect=True))
        private.send("a" * 5).wait()
        private.send("b" * 5).wait()
        client.generate("c" * 9, replace(settings, do_not_collect=True)).wait()
        said = client.generate("d" * 30, settings).wait()
    (record,) = [*read_shards(out)]
    assert record.chosen.tolist() == said.token_ids
