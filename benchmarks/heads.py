"""Heads of the embedded target beside n-grams and its stand-alone draft, where the text does not
repeat.

First turns in phrasings that no training dialogue has. Three pairs of services run side by side:
one without heads, one with Medusa heads and one with an EAGLE-3 head (`training.heads` makes both).
In one run each system answers the same questions several times, in a random order. Steps are the
target's forwards; each brings one token beside the accepted ones.

Speed is tokens for each second of processor time of the verifier, which computes on one thread, and
of the draft. On a quiet core that is tokens a second of verifier and draft without overlap. Waiting
for other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import truediv
from pathlib import Path

import psutil
from rich.table import Table

from benchmarks.embedded_pair import prompts
from benchmarks.report import Report, add_output
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from training.dialogues import HELD_OUT_PHRASINGS

_ONE_THREAD = ("--threads", "1")
BACKENDS = {
    "compiled": PairSettings(target_flags=_ONE_THREAD),
    "torch": PairSettings(target_flags=("--engine", "torch", *_ONE_THREAD), dtype="float32"),
}
"""Settings of the pairs by the backend of the target."""


@dataclass
class System:
    """A way to generate, and what it did."""

    name: str
    client: Client
    settings: Settings
    processes: list[psutil.Process]
    """The processes whose time counts."""
    rates: list[float] = field(default_factory=list)
    """Tokens for each second of processor time, of each repetition."""
    results: list[Result] = field(default_factory=list)

    def answer(self, questions: Sequence[list[int]]) -> None:
        """Answer one question after another."""
        before = self._processor_seconds()
        results = [self.client.generate(question, self.settings).wait() for question in questions]
        tokens = sum(result.generated_token_count for result in results)
        self.rates.append(tokens / (self._processor_seconds() - before))
        self.results += results

    def _processor_seconds(self) -> float:
        times = [process.cpu_times() for process in self.processes]
        return sum(each.user + each.system for each in times)


def processes_of(services: LocalServices, names: Sequence[str]) -> list[psutil.Process]:
    """Return the processes of some services, with their children."""
    own = [psutil.Process(services.services[name].process.pid) for name in names]
    return [each for process in own for each in (process, *process.children(recursive=True))]


def systems_of(pairs: dict[str, tuple[Client, LocalServices]], temperature: float, max_tokens: int) -> list[System]:
    """Return the compared systems, the one without hints first."""

    def system(name: str, pair: str, services: Sequence[str], **mode: object) -> System:
        settings = Settings(temperature=temperature, seed=1, max_token_count=max_tokens, **mode)  # type: ignore[arg-type]
        client, local = pairs[pair]
        return System(name, client, settings, processes_of(local, services))

    return [
        system("off", "plain", ["verifier"], draft_length=0),
        system("n-grams", "plain", ["verifier"], draft_length="adaptive", proposer="ngram"),
        system("Medusa", "Medusa", ["verifier"], draft_length="adaptive", proposer="heads"),
        system("EAGLE-3", "EAGLE-3", ["verifier"], draft_length="adaptive", proposer="heads"),
        system("draft", "plain", ["verifier", "draft"], draft_length="adaptive", proposer="draft"),
    ]


def measure(systems: Sequence[System], questions: list[list[int]], repetitions: int) -> None:
    """Let the systems take turns, after one warm-up each."""
    draw = random.Random(0)
    for repetition in range(repetitions + 1):
        for system in draw.sample(systems, len(systems)):
            system.answer(questions)
            if not repetition:
                system.rates.clear()
                system.results.clear()


def new_table() -> Table:
    """Return a table without rows."""
    table = Table(title="medians of the repetitions; ratios are medians within a repetition")
    columns = ("accepted a step", "acceptance", "tokens/processor s", "x off", "x n-grams")
    for column in ("backend", "T", "system", *columns):
        table.add_column(column, justify="left" if column in ("backend", "system") else "right")
    return table


def add_rows(table: Table, systems: Sequence[System], backend: str) -> None:
    """Add what the systems did: steps by what they accepted, and speed."""
    off, ngrams = systems[:2]
    for system in systems:
        accepted = sum(result.accepted_token_count for result in system.results)
        drafted = sum(result.draft_token_count for result in system.results)
        tokens = sum(result.generated_token_count for result in system.results)
        ratios = [statistics.median(map(truediv, system.rates, base.rates)) for base in (off, ngrams)]
        table.add_row(
            backend,
            f"{system.settings.temperature:g}",
            system.name,
            f"{accepted / (tokens - accepted):.2f}",
            f"{accepted / drafted:.3f}" if drafted else "",
            f"{statistics.median(system.rates):.0f}",
            *[f"{ratio:.2f}" for ratio in ratios],
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heads", description=__doc__)
    parser.add_argument("--medusa", type=Path, required=True, help="folder of Medusa heads")
    parser.add_argument("--eagle3", type=Path, required=True, help="folder of an EAGLE-3 head")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.8])
    parser.add_argument("--prompts", type=int, default=20, help="questions in each repetition")
    parser.add_argument("--repetitions", type=int, default=5, help="counted repetitions; one more warms up")
    parser.add_argument("--max-tokens", type=int, default=64)
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report("heads", __doc__ or "", options.output)
    questions = prompts(options.prompts, HELD_OUT_PHRASINGS)
    table = new_table()
    folders = {"plain": None, "Medusa": options.medusa, "EAGLE-3": options.eagle3}
    for backend in options.backends:
        with ExitStack() as stack:
            pairs = {}
            for name, folder in folders.items():
                services = stack.enter_context(LocalServices(_settings(BACKENDS[backend], folder)))
                pairs[name] = stack.enter_context(Client(services.orchestrator_address)), services
            for temperature in options.temperatures:
                systems = systems_of(pairs, temperature, options.max_tokens)
                measure(systems, questions, options.repetitions)
                add_rows(table, systems, backend)
    report.show(table)


def _settings(settings: PairSettings, folder: Path | None) -> PairSettings:
    """Return a pair's settings: with the heads of a folder, or with a draft."""
    if folder is None:
        return settings
    return PairSettings(
        draft="", dtype=settings.dtype, target_flags=(*settings.target_flags, "--heads", str(folder.resolve()))
    )


if __name__ == "__main__":
    main()
