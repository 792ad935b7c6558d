"""The proof in its smallest form, and that it sees a difference: in the reference, and in a token
changed on its way."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from proving.__main__ import main
from proving.disturbances import Disturbance, OneSession, Scope, Wave, disturbances_on
from proving.pairs import COMPILED, EMBEDDED, pair_named
from proving.prompts import PromptSource
from proving.proxy import Fault
from proving.reference import PlainDecoder
from proving.results import ResultStore
from proving.run_faults import Strike
from proving.schedule import Cell, plan
from proving.schedule import Wave as PlannedWave
from proving.serving import CellRun
from proving.system import Setup, System
from slipstream.cli.service_process import Service
from tests.system.short_proofs import (
    PROMPT_COUNT,
    TOKEN_COUNT,
    assert_no_bit_differs,
    flags_of,
    never_struck,
    prove,
)

SEED = 3
RUN = f"test-seed{SEED}-prompts{PROMPT_COUNT}-tokens{TOKEN_COUNT}"
PROMPTS = PromptSource(SEED).draw(PROMPT_COUNT)

ALL = disturbances_on(COMPILED)

pytestmark = pytest.mark.timeout(1200)


def planned() -> list[Cell]:
    return plan([len(prompt) for prompt in PROMPTS], SEED, ALL)


def start(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "proving", *flags_of(directory, SEED)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was killed after its first cell and run again."""
    directory = tmp_path_factory.mktemp("prove")
    first_cell = directory / RUN / "served-0000.npz"
    process = start(directory)
    while not first_cell.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    written = first_cell.stat().st_mtime_ns
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive, f"left behind by a killed proof: {alive}"
    status, output = prove(directory, SEED)
    assert_no_bit_differs(directory, SEED, status, output)
    assert first_cell.stat().st_mtime_ns == written, "the finished cell was run again"
    return directory


def row_of(output: str, name: str) -> str:
    return next(line for line in output.splitlines() if line.startswith(f"| {name} |"))


def test_not_one_bit_differs_under_any_disturbance(proven: Path) -> None:
    directory = proven
    report = (directory / "report.md").read_text()
    silent = never_struck(directory)
    for disturbance in ALL:
        if disturbance.name in silent:  # it struck in another proof
            continue
        cells = [cell.strip() for cell in row_of(report, disturbance.name).split("|")[1:-1]]
        unit, _, strikes = cells[3].rpartition(": ")
        assert int(cells[1]) >= PROMPT_COUNT / 20 and int(strikes.replace(",", "")) > 0 and unit == disturbance.unit
        assert cells[4:] == ["0", ""]


def compare_changed(proven: Path, copy: Path, change: Any) -> tuple[int, str]:
    """The verdict on a copy of a finished run that ``change`` had its hands on: nothing is run
    again."""
    shutil.copytree(proven, copy)
    change(ResultStore(copy / RUN))
    code, _ = prove(copy, SEED)
    return code, (copy / "report.md").read_text()


def test_other_noise_in_the_reference_and_one_flipped_bit_are_seen(proven: Path, tmp_path: Path) -> None:
    cell = planned()[2]
    noisy = next(index for index, turn in enumerate(cell.turns) if turn.temperature > 0)
    flipped = next(index for index, turn in enumerate(cell.turns) if turn.temperature == 0)
    expected = {}

    def change(store: ResultStore) -> None:
        reference = store.reference(cell.index)
        assert reference is not None
        turn = cell.turns[noisy]
        prompt = PROMPTS[turn.prompt]
        other = PlainDecoder(
            pair_named(cell.pair, store.directory, cell.dtype, COMPILED), len(prompt) + TOKEN_COUNT
        ).decode([prompt], [dataclasses.replace(turn, seed=turn.seed ^ 1)], TOKEN_COUNT)
        position = int((other.tokens[0] != reference.tokens[noisy]).nonzero()[0][0])
        expected["noisy"] = f"prompt {turn.prompt}, position {position}, token, margin {other.margins[0, position]:.4g}"
        for name in ("tokens", "logprobs", "margins"):
            getattr(reference, name)[noisy] = getattr(other, name)[0]
        reference.logprobs.view(np.int32)[flipped, 31] ^= 1
        margin = reference.margins[flipped, 31]
        turn = cell.turns[flipped]
        expected["flipped"] = f"prompt {turn.prompt}, position 31, log-probability, margin {margin:.4g}"
        store.save_reference(cell.index, reference)

    code, report = compare_changed(proven, tmp_path / "changed", change)
    assert code == 1
    assert f"2 of {PROMPT_COUNT} prompts differ" in report
    assert row_of(report, f"{cell.dtype}, temperature 0.8").endswith(f"| 1 | {expected['noisy']} |")
    assert row_of(report, f"{cell.dtype}, temperature 0").endswith(f"| 1 | {expected['flipped']} |")
    met = list(cell.met())
    touched = {disturbance.name for index in (noisy, flipped) for disturbance in met[index][1]}
    for disturbance in ALL:
        assert row_of(report, disturbance.name).endswith("| 0 |  |") != (disturbance.name in touched)


class Tampering(Disturbance):
    """Changes the verifier's token once, well inside a turn."""

    name = "tampering"
    unit = "tokens changed"
    scope = Scope.WAVE
    proxied = True
    place: tuple[int, int] | None = None
    """Prompt and position of the changed token."""

    def verifier_fault(self, wave: Wave, index: int, strike: Strike) -> Fault:
        tampering = self

        class Tamper(Fault):
            def run_results(self, results: list[Any]) -> tuple[list[Any], list[Any]]:
                for turn, prompt in wave.in_flight.items():  # one session
                    for result in results:
                        position = result.position + len(result.tokens) - 1 - len(prompt)
                        if tampering.place is None and result.tokens and position > TOKEN_COUNT // 2:
                            result.tokens[-1] ^= 1
                            for scored in result.logprobs[-1:]:  # else the orchestrator sees that they do not fit
                                scored.token_id = result.tokens[-1]
                            tampering.place = (turn, position)
                            strike(1)
                return results, []

        return Tamper()


def test_a_token_changed_between_verifier_and_orchestrator_is_seen(proven: Path, tmp_path: Path) -> None:
    cell = planned()[1]
    tampering = Tampering()
    waves = [PlannedWave(cell.turns, 1, [OneSession(), tampering])]
    run = CellRun(
        Cell(cell.index, cell.pair, cell.dtype, True, waves),
        PROMPTS,
        TOKEN_COUNT,
        SEED,
        proven / RUN,
        COMPILED,
        lambda _: None,
    )
    run.run()
    assert tampering.place is not None and run.account.strikes[tampering.name] == 1
    assert run.account.complaints == []
    prompt, position = tampering.place
    row = next(row for row, turn in enumerate(cell.turns) if turn.prompt == prompt)

    def change(store: ResultStore) -> None:
        kept = store.served(cell.index)
        assert kept is not None
        store.save_served(cell.index, run.generated, kept[1])

    code, report = compare_changed(proven, tmp_path / "tampered", change)
    reference = ResultStore(proven / RUN).reference(cell.index)
    assert code == 1 and reference is not None
    where = f"prompt {prompt}, position {position}, token, margin {reference.margins[row, position]:.4g}"
    assert row_of(report, "all").endswith(f"| 1 | {where} |")


class Failing(Disturbance):
    """Fails once it may begin."""

    name = "failing"
    unit = "failures"
    scope = Scope.WAVE

    def during(self, wave: Wave, strike: Strike) -> None:
        raise KeyError("verifier 7")


def test_a_disturbance_that_fails_is_told(tmp_path: Path) -> None:
    cell = planned()[1]
    waves = [PlannedWave(cell.turns[:1], 1, [OneSession(), Failing()])]
    run = CellRun(
        Cell(cell.index, cell.pair, cell.dtype, False, waves), PROMPTS, 8, SEED, tmp_path, COMPILED, lambda _: None
    )
    run.run()
    assert run.account.complaints == [f"cell {cell.index}: failing: KeyError: 'verifier 7'"]


def test_a_service_can_be_asked_while_another_thread_starts_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(Setup(pair_named(EMBEDDED, Path(), "float32", COMPILED), 1, 64, 64))
    asked = []

    class Asking(Service):
        def stop(self, patience: float = 40.0) -> None:
            super().stop(patience)
            with system.connect("draft") as channel:
                asked.append(channel)

    monkeypatch.setattr("proving.system.Service", Asking)
    system.start_draft()
    try:
        system.start_draft()
    finally:
        system.__exit__(None, None, None)
    assert len(asked) == 2, "while it was started again, and at the end"


def test_the_list_names_every_disturbance_and_too_few_prompts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    assert all(disturbance.name in listed for disturbance in ALL)
    with pytest.raises(SystemExit, match="at least 40"):
        main(["--prompts", "39"])
