"""Ask the embedded pair about sampled symbols in the held-out phrasing: exact answers, and acceptance for each position.

The questions go through the three real services, as a client would send them.
"""

from __future__ import annotations

import argparse
import random

from rich.console import Console
from rich.progress import track
from rich.table import Table

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from slipstream.hosting.tokenizer_files import embedded_directory
from training import corpus
from training.dialogues import held_out_question

console = Console()


def ask(client: Client, entries: list[corpus.Entry], settings: Settings) -> list[Result]:
    """One conversation of one question for each entry."""
    results = []
    for entry in track(entries, f"temperature {settings.temperature:g}", console=console):
        messages = [(m["role"], m["content"]) for m in held_out_question(entry)]
        results.append(client.answer(messages, settings).wait())
    return results


def acceptance_by_position(results: list[Result]) -> list[float]:
    """For each position, the share of proposals that had it and saw it accepted."""
    width = max(len(result.drafted_per_position) for result in results)
    drafted, accepted = [0] * width, [0] * width
    for result in results:
        for position, count in enumerate(result.drafted_per_position):
            drafted[position] += count
            accepted[position] += result.accepted_per_position[position]
    return [a / d for a, d in zip(accepted, drafted, strict=True)]


def acceptance(results: list[Result]) -> float:
    """Accepted over proposed draft tokens."""
    return sum(r.accepted_token_count for r in results) / sum(r.draft_token_count for r in results)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="symbols to sample")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--draft-length", type=int, default=5, help="draft tokens a round")
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16 or float32")
    options = parser.parse_args()
    entries = corpus.read(embedded_directory("target").parent / "symbols.jsonl")
    sample = random.Random(options.seed).sample(entries, options.count)
    table = Table(title=f"{options.count} of {len(entries)} symbols, held-out phrasing, {options.dtype}")
    for column in ("temperature", "exact answers", "acceptance", "by position", "mean acceptance length"):
        table.add_column(column, justify="right")
    with LocalServices(PairSettings(dtype=options.dtype)) as local, Client(local.orchestrator_address) as client:
        for temperature in (0.0, 0.8):
            results = ask(client, sample, Settings(temperature=temperature, seed=1, draft_length=options.draft_length))
            exact = sum(result.text == entry.answer for result, entry in zip(results, sample, strict=True))
            drafts = sum(result.draft_count for result in results)
            table.add_row(
                f"{temperature:g}",
                f"{exact / len(sample):.1%}",
                f"{acceptance(results):.3f}",
                " ".join(f"{share:.2f}" for share in acceptance_by_position(results)),
                f"{1 + sum(r.accepted_token_count for r in results) / drafts:.2f}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
