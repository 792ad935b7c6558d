"""A new draft is tried under traffic and kept or removed, and no text changes meanwhile."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from slipstream.bearer_tokens import make_token
from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.cli.reaching import Server
from slipstream.cli.service_process import Service
from slipstream.cli.swapping.comparison import Verdict
from slipstream.cli.swapping.goal import Finding, Goal, SwapError
from slipstream.cli.swapping.new_draft import NewDraft
from slipstream.cli.swapping.operators import Operators, trial_terms
from slipstream.cli.swapping.replacement import Replacement
from slipstream.cli.swapping.trial import Trial
from slipstream.client import Client, Settings
from slipstream.rpc.status import PeerError
from slipstream.v1 import operator_pb2
from tests import tiny_models
from tests.commands import SLIPSTREAM, run
from tests.system.conftest import PAPER_PAIR, paper_tokens
from tests.system.test_access import kept

GOOD, BAD = ("arithmetic:ends=0&agreement=0.9", "arithmetic:ends=0&agreement=0.3")
PAIR = dataclasses.replace(
    PAPER_PAIR, target="arithmetic:ends=0&forward_ms=3", orchestrator_flags=["--anyone-operates"]
)
LENGTH = 60
SETTINGS = Settings(max_token_count=LENGTH, draft_length=4)
GOAL = Goal(share=0.5, turn_count=20, token_count=None, longest=300.0, start_seconds=120.0)


class Traffic:
    """Callers that compare each text with what the target says, until they are stopped."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.turn_count = 0
        self.faults: list[str] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(3)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        assert not self.faults and self.turn_count

    def _call(self, number: int) -> None:
        with Client(self.address) as client:
            for count in itertools.count():
                if self._stopping.is_set():
                    return
                prompt = [10 + number, 20 + count % 200, 30]
                try:
                    tokens = client.generate(prompt, SETTINGS).wait().token_ids
                except PeerError as error:  # where a test restarts the orchestrator
                    if error.code.name != "UNAVAILABLE" and error.reason not in ("SHUTTING_DOWN", "NOT_READY"):
                        self.faults.append(str(error))
                    time.sleep(0.1)
                    continue
                if list(tokens) != paper_tokens(prompt, LENGTH):
                    self.faults.append(f"{prompt}: another text")
                self.turn_count += 1


@contextmanager
def served(settings: PairSettings) -> Iterator[LocalServices]:
    with LocalServices(settings) as local:
        yield local


@contextmanager
def draft_at(model: str) -> Iterator[Service]:
    """A draft service that is no orchestrator's yet."""
    with ExitStack() as stack:
        flags = ["--model", model, "--kv-memory-mib", "1", "--drain-seconds", "0"]
        service = Service("draft", "draft_service", free_address(), flags, {})
        stack.callback(service.stop)
        service.wait_until_healthy()
        yield service


def operators(local: LocalServices, name: str = "test") -> Operators:
    return Operators(Server(local.orchestrator_address), name)


def trial_of(local: LocalServices, address: str, name: str = "test", **goal: float) -> Trial:
    draft = NewDraft(operators(local, name), address, lambda: None)
    return Trial(draft, dataclasses.replace(GOAL, **goal))


def replace_after(trial: Trial) -> None:
    """Keep the new draft of a trial, and remove the old ones."""
    ended = Replacement(trial.draft, trial.old_addresses)
    ended.keep(trial.goal.share)
    ended.remove_old()


def addresses(local: LocalServices) -> list[str]:
    (process,) = operators(local).list()
    return [draft.address for draft in process.drafts]


def until(condition: Callable[[], bool], what: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def is_on_trial(local: LocalServices, share: float) -> Callable[[], bool]:
    def asked() -> bool:
        try:
            processes = operators(local).list()
        except PeerError:
            return False
        return any(draft.trial.share == share for each in processes for draft in each.drafts)

    return asked


def found_beside(trial: Trial) -> tuple[threading.Thread, list[Finding]]:
    """Begin a trial in a thread."""
    findings: list[Finding] = []
    thread = threading.Thread(target=lambda: findings.append(trial.find()))
    thread.start()
    return thread, findings


@pytest.mark.essential
def test_a_better_draft_is_kept_and_its_service_lives_on() -> None:
    with served(dataclasses.replace(PAIR, draft=BAD)) as local, Traffic(local.orchestrator_address):
        given = ["--model", GOOD, "--share", "0.5", "--turns", "20", "--json", "--", "--kv-memory-mib", "1"]
        done = run("swap", "--address", local.orchestrator_address, *given)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["verdict"], report["kept"]) == ("better", True)
        assert report["new"]["turn_count"] >= 20 and report["old"]["turn_count"] >= 8
        assert report["new"]["acceptance"]["value"] > report["old"]["acceptance"]["value"] + 0.3
        assert len(report["new"]["acceptance_per_position"]) == 4
        assert addresses(local) == [report["address"]]
        assert f"--draft {report['address']}" in done.stderr and local.draft_address in done.stderr
        number = int(done.stderr.partition("as process ")[2].partition(";")[0])
        lasting = psutil.Process(number)
        assert lasting.is_running() and GOOD in " ".join(lasting.cmdline())
        os.kill(number, signal.SIGTERM)


def test_a_worse_draft_is_removed() -> None:
    with served(dataclasses.replace(PAIR, draft=GOOD)) as local, Traffic(local.orchestrator_address):
        with draft_at(BAD) as new:
            given = ["--running", new.address, "--share", "0.5", "--turns", "20"]
            done = run("swap", "--address", local.orchestrator_address, *given)
        assert done.returncode == 3, done.stderr
        assert "worse" in done.stdout and "accepted at position 4" in done.stdout and "is removed" in done.stderr
        assert addresses(local) == [local.draft_address]


def test_a_draft_with_the_weights_of_the_old_one_is_not_compared() -> None:
    with served(dataclasses.replace(PAIR, draft=GOOD)) as local, draft_at(GOOD) as new:
        trial = trial_of(local, new.address)
        finding = trial.find()
        assert finding.verdict is Verdict.UNDECIDED and f"weights of the draft at {local.draft_address}" in finding.why
        replace_after(trial)
        assert addresses(local) == [new.address]
        with pytest.raises(SwapError, match="a draft of this orchestrator already"):
            trial_of(local, new.address).find()


def test_a_draft_that_dies_in_the_trial_is_failing() -> None:
    with (
        served(dataclasses.replace(PAIR, draft=GOOD)) as local,
        draft_at(BAD) as new,
        Traffic(local.orchestrator_address),
    ):
        words: list[str] = []
        draft = NewDraft(operators(local), new.address, lambda: words[0] if words else None)
        trial = Trial(draft, dataclasses.replace(GOAL, turn_count=10**6))
        thread, findings = found_beside(trial)
        until(is_on_trial(local, 0.5), "the trial does not begin")
        new.process.kill()
        words.append("it was killed")
        thread.join()
        trial.draft.withdraw()
        assert findings[0].verdict is Verdict.FAILING and findings[0].why == "it was killed"
        assert addresses(local) == [local.draft_address]


def test_ctrl_c_leaves_nothing_behind() -> None:
    with served(dataclasses.replace(PAIR, draft=GOOD)) as local:
        command = [*SLIPSTREAM, "swap", "--address", local.orchestrator_address, "--model", BAD, "--share", "0.25"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as swapping:
            until(is_on_trial(local, 0.25), "the trial does not begin")
            children = psutil.Process(swapping.pid).children()
            swapping.send_signal(signal.SIGINT)
            assert swapping.wait(120) != 0
        assert addresses(local) == [local.draft_address]
        assert children and not any(child.is_running() for child in children)


INTERRUPTED = """
from slipstream.cli.__main__ import main
from slipstream.cli.swapping.operators import Operators

remove = Operators.remove

def interrupted(self, address):
    remove(self, address)
    raise KeyboardInterrupt

Operators.remove = interrupted
main()
"""
"""The command, with Ctrl-C just after the first draft was removed."""


def test_ctrl_c_while_the_old_draft_is_removed_keeps_the_new_one() -> None:
    with served(dataclasses.replace(PAIR, draft=GOOD)) as local:
        given = ["swap", "--address", local.orchestrator_address, "--model", GOOD, "--keep"]
        done = subprocess.run([sys.executable, "-P", "-c", INTERRUPTED, *given], capture_output=True, text=True)
        assert done.returncode not in (0, 3)
        number = int(done.stderr.partition("as process ")[2].partition(";")[0])
        (kept,) = addresses(local)
        assert f"{local.draft_address} serves on: interrupted" in done.stderr and f"--draft {kept}" in done.stderr
        assert psutil.Process(number).is_running() and kept in psutil.Process(number).cmdline()
        os.kill(number, signal.SIGTERM)


def test_a_command_that_is_killed_takes_its_draft_with_it() -> None:
    with served(dataclasses.replace(PAIR, draft=GOOD)) as local:
        command = [*SLIPSTREAM, "swap", "--address", local.orchestrator_address, "--model", BAD, "--share", "0.25"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as swapping:
            until(is_on_trial(local, 0.25), "the trial does not begin")
            (child,) = psutil.Process(swapping.pid).children()
            swapping.kill()
        until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "its draft lives on")
        until(lambda: addresses(local) == [local.draft_address], "the lease does not end")


def test_a_trial_goes_on_after_the_orchestrator_is_restarted() -> None:
    with served(dataclasses.replace(PAIR, draft=BAD)) as local, draft_at(GOOD) as new:
        with Traffic(local.orchestrator_address) as traffic:
            trial = trial_of(local, new.address, turn_count=40)
            thread, findings = found_beside(trial)
            until(is_on_trial(local, 0.5), "the trial does not begin")
            local.start_orchestrator().wait_until_healthy()
            traffic.turn_count = 0
            thread.join()
            assert traffic.turn_count
        assert findings[0].verdict is Verdict.BETTER, findings[0].why
        replace_after(trial)
        assert addresses(local) == [new.address]


def test_a_draft_that_is_not_there_is_waited_for_with_the_reason() -> None:
    class SeenError(Exception):
        pass

    def look(text: str) -> None:
        if "refused" in text:
            raise SeenError

    with served(dataclasses.replace(PAIR, draft=GOOD)) as local:
        trial = trial_of(local, "127.0.0.1:1")
        trial.draft.report = look
        with pytest.raises(SeenError):
            trial.find()
        trial.draft.withdraw()
        assert addresses(local) == [local.draft_address]


def test_one_trial_at_a_time() -> None:
    with served(dataclasses.replace(PAIR, draft=GOOD)) as local, draft_at(BAD) as new, draft_at(BAD) as other:
        operators(local, "first").add(new.address, trial_terms(0.1, 600.0))
        with pytest.raises(PeerError, match="one at a time") as refused:
            trial_of(local, other.address, "second").find()
        assert refused.value.reason == "DRAFT_ON_TRIAL"
        assert addresses(local) == [local.draft_address, new.address]
        operators(local, "first").remove(new.address)
        assert addresses(local) == [local.draft_address]


def test_the_present_draft_is_no_new_one_and_stays() -> None:
    with served(dataclasses.replace(PAIR, draft=GOOD)) as local:
        done = run("swap", "--address", local.orchestrator_address, "--running", local.draft_address)
        assert done.returncode == 1 and "already" in done.stderr
        assert addresses(local) == [local.draft_address]


def test_a_draft_with_another_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    model = tiny_models.save(tiny_models.build("llama"), tmp_path / "stranger")
    with served(dataclasses.replace(PAIR, draft=GOOD)) as local, draft_at(str(model)) as new:
        trial = trial_of(local, new.address)
        with pytest.raises(SwapError, match=r"another tokenizer.* --target-tokenizer"):
            trial.find()
        trial.draft.withdraw()
        assert addresses(local) == [local.draft_address]


def test_a_swap_reaches_all_processes_behind_one_port() -> None:
    flags = [*PAIR.orchestrator_flags, "--process-count", "2"]
    with (
        served(dataclasses.replace(PAIR, draft=BAD, orchestrator_flags=flags)) as local,
        draft_at(GOOD) as new,
        Traffic(local.orchestrator_address),
    ):
        until(lambda: not any(each.HasField("error") for each in operators(local).list()), "a process is missing")
        trial = trial_of(local, new.address)
        assert trial.find().verdict is Verdict.BETTER
        replace_after(trial)
        assert not trial.draft.unreached
        processes = operators(local).list()
        assert len(processes) == 2 and len({each.process_id for each in processes}) == 2
        for each in processes:
            assert [(draft.address, draft.state) for draft in each.drafts] == [
                (new.address, operator_pb2.DRAFT_STATE_SERVING)
            ]


def test_without_an_operators_right_nothing_changes() -> None:
    with served(dataclasses.replace(PAIR, orchestrator_flags=[])) as local:
        done = run("swap", "--address", local.orchestrator_address, "--running", "127.0.0.1:1")
        assert done.returncode == 1 and "--anyone-operates" in done.stderr


def test_with_an_access_file_operators_may_in_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {name: make_token() for name in ("oncall", "alice")}
    lines = [f'[[principals]]\nname = "{name}"\ntokens = [{kept(token)}]' for name, (_, token) in tokens.items()]
    access = tmp_path / "access.toml"
    access.write_text(f"{lines[0]}\noperator = true\n{lines[1]}\n")
    access.chmod(0o600)
    flags = ["--access", str(access), "--process-count", "2"]
    with served(dataclasses.replace(PAIR, orchestrator_flags=flags)) as local:
        monkeypatch.setenv("SLIPSTREAM_TOKEN", tokens["alice"][0])
        with pytest.raises(PeerError) as refused:
            operators(local).list()
        assert refused.value.reason == "OPERATORS_ONLY"
        monkeypatch.setenv("SLIPSTREAM_TOKEN", tokens["oncall"][0])
        serving = [[operator_pb2.DRAFT_STATE_SERVING]] * 2
        until(
            lambda: [[draft.state for draft in each.drafts] for each in operators(local).list()] == serving,
            "a process is missing, or still starts",
        )
        processes = operators(local).add("127.0.0.1:1", trial_terms(0.1, 600.0))
        assert [[draft.address for draft in each.drafts] for each in processes] == [
            [local.draft_address, "127.0.0.1:1"]
        ] * 2, processes
