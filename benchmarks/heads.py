"""Heads of the embedded target beside n-grams and its stand-alone draft, where the text does not
repeat.

First turns in phrasings that no training dialogue has. Three pairs of services run side by side:
one without heads, one with Medusa heads and one with an EAGLE-3 head (`training.heads` makes both).
In one run each system answers the same questions several times, in a random order. Steps are the
target's forwards; each brings one token beside the accepted ones.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.table import Table

from benchmarks.embedded_pair import measure, median_ratio, prompts
from benchmarks.report import Report, add_output
from benchmarks.systems import Prompts, System
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from training.dialogues import HELD_OUT_PHRASINGS

BACKENDS = {
    "compiled": PairSettings(),
    "torch": PairSettings(target_flags=("--engine", "torch"), dtype="float32"),
}
"""Settings of the pairs by the backend of the target."""


def system_of(name: str, client: Client, settings: Settings) -> System:
    """Return a system that answers one question after another."""

    def answer(questions: Prompts) -> int:
        results = [client.generate(question, settings).wait() for question in questions]
        system.results += results
        return sum(result.generated_token_count for result in results)

    system = System(name, settings.temperature or 0.0, answer)
    return system


def systems_of(clients: dict[str, Client], temperature: float, max_tokens: int) -> list[System]:
    """Return the compared systems, the one without hints first."""
    plain = clients["plain"]

    def settings(**mode: object) -> Settings:
        return Settings(temperature=temperature, seed=1, max_token_count=max_tokens, **mode)  # type: ignore[arg-type]

    heads = [(name, clients[name], settings(proposer="heads")) for name in ("Medusa", "EAGLE-3")]
    return [
        system_of("off", plain, settings(draft_length=0)),
        system_of("n-grams", plain, settings(draft_length="adaptive", proposer="ngram")),
        *[system_of(*each) for each in heads],
        system_of("draft", plain, settings(draft_length="adaptive", proposer="draft")),
    ]


def new_table() -> Table:
    """Return a table without rows."""
    table = Table(title="medians of the repetitions; ratios are medians within a repetition")
    for column in ("backend", "T", "system", "accepted a step", "acceptance", "tokens/s", "x off", "x n-grams"):
        table.add_column(column, justify="left" if column in ("backend", "system") else "right")
    return table


def add_rows(table: Table, systems: Sequence[System], backend: str) -> None:
    """Add what the systems did: steps by what they accepted, and speed."""
    off, ngrams = systems[:2]
    for system in systems:
        accepted = sum(result.accepted_token_count for result in system.results)
        tokens = sum(result.generated_token_count for result in system.results)
        table.add_row(
            backend,
            f"{system.temperature:g}",
            system.name,
            f"{accepted / (tokens - accepted):.2f}",
            "" if system.acceptance is None else f"{system.acceptance:.3f}",
            f"{statistics.median(system.rates):.0f}",
            f"{median_ratio(system, off):.2f}",
            f"{median_ratio(system, ngrams):.2f}",
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
            clients = {}
            for name, folder in folders.items():
                services = stack.enter_context(LocalServices(_settings(BACKENDS[backend], folder)))
                clients[name] = stack.enter_context(Client(services.orchestrator_address))
            for temperature in options.temperatures:
                systems = systems_of(clients, temperature, options.max_tokens)
                measure(systems, questions, options.repetitions, report)
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
