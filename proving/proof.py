"""One run of the proof: reference processes beside the served system, cell by cell, and then the
comparison."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from proving.comparison import Verdict, compare
from proving.disturbances import disturbances_on
from proving.pairs import COMPILED, prepare
from proving.prompts import PromptSource
from proving.results import ResultStore
from proving.schedule import DTYPES, Cell, plan
from proving.serving import CellRun
from slipstream.errors import SlipstreamError
from slipstream.interpreter import module_command

_SPEED_SECONDS = 300.0
"""Seconds over which the remaining time is estimated. Start-ups and slow cells should even out."""


class ReferenceFailedError(SlipstreamError):
    """A reference process ended before it was done."""


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of one run: its prompts, and its directory."""

    prompt_count: int
    token_count: int
    seed: int
    directory: Path
    backend: str = COMPILED


class Proof:
    """Runs the cells that are not done yet, and compares everything."""

    def __init__(self, run: Run, console: Console) -> None:
        self.store = ResultStore(run.directory)
        prepare(run.directory, run.backend)
        self._run = run
        self._console = console
        self._disturbances = disturbances_on(run.backend)
        self._prompts = PromptSource(run.seed).draw(run.prompt_count)
        self.cells = plan([len(prompt) for prompt in self._prompts], run.seed, self._disturbances)

    def run(self) -> Verdict:
        """Run the proof. SlipstreamError if a process cannot be started or a reference fails."""
        decoded = [cell for cell in self.cells if self.store.reference(cell.index)]
        served = [cell for cell in self.cells if self.store.served(cell.index)]
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
        )
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        with Progress(*columns, *times, console=self._console, speed_estimate_period=_SPEED_SECONDS) as progress:
            total = sum(map(self._tokens_in, self.cells))
            decoding = _Meter(progress, "plain decoding", total, sum(map(self._tokens_in, decoded)))
            serving = _Meter(progress, "served, disturbed", total, sum(map(self._tokens_in, served)))
            with self._reference(decoding) as wait_for_reference:
                for cell in self.cells:
                    if cell not in served:
                        self._serve(cell, serving)
                wait_for_reference()
        return compare(self.cells, self._disturbances, self.store)

    def _serve(self, cell: Cell, meter: _Meter) -> None:
        run = CellRun(
            cell,
            self._prompts,
            self._run.token_count,
            self._run.seed,
            self._run.directory,
            self._run.backend,
            meter.add,
        )
        run.run()
        self.store.save_served(cell.index, run.generated, run.account)
        rate = self._tokens_in(cell) / run.account.seconds
        names = dict.fromkeys(
            d.name for d in (*cell.disturbances, *(d for wave in cell.waves for d in wave.disturbances))
        )
        which = f"cell {cell.index + 1} of {len(self.cells)}, {cell.pair}, {cell.dtype}"
        self._console.log(f"{which}: {rate:.0f} tokens/s with {'; '.join(names)}")
        for complaint in run.account.complaints:
            self._console.log(complaint, style="red")

    def _tokens_in(self, cell: Cell) -> int:
        return len(cell.turns) * self._run.token_count

    @contextmanager
    def _reference(self, meter: _Meter) -> Iterator[Callable[[], None]]:
        """Run one reference process for each dtype beside the served system. Yields a function that
        waits for them."""
        missing = {cell.dtype for cell in self.cells if self.store.reference(cell.index) is None}
        processes = {dtype: self._start_reference(dtype) for dtype in DTYPES if dtype in missing}
        readers = [threading.Thread(target=_read_counts, args=(process, meter)) for process in processes.values()]
        for reader in readers:
            reader.start()

        def wait() -> None:
            for dtype, process in processes.items():
                if process.wait():
                    raise ReferenceFailedError(f"the {dtype} reference failed: see {self._reference_log(dtype)}")

        try:
            yield wait
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
            for reader in readers:
                reader.join()

    def _start_reference(self, dtype: str) -> subprocess.Popen[str]:
        run = self._run
        flags = ["--directory", str(run.directory), "--prompts", str(run.prompt_count), "--seed", str(run.seed)]
        flags += ["--tokens", str(run.token_count), "--dtype", dtype, "--backend", run.backend]
        command = module_command("slipstream.cli.child", str(os.getpid()), "proving.reference", *flags)
        with self._reference_log(dtype).open("w") as errors:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)

    def _reference_log(self, dtype: str) -> Path:
        return self._run.directory / f"reference-{dtype}.log"


class _Meter:
    """One progress bar: tokens so far and their rate. Any thread may call it."""

    def __init__(self, progress: Progress, title: str, total: int, done: int) -> None:
        self._progress = progress
        self._task = progress.add_task(f"{title:<18}", total=total, completed=done, rate="")
        self._started = time.monotonic()
        self._added = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Add tokens."""
        with self._lock:
            self._added += count
            rate = self._added / (time.monotonic() - self._started)
            self._progress.update(self._task, advance=count, rate=f"{rate:5.0f} tokens/s")


def _read_counts(process: subprocess.Popen[str], meter: _Meter) -> None:
    assert process.stdout is not None
    with process.stdout as counts:
        for line in counts:
            meter.add(int(line))
