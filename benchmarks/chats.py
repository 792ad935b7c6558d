"""Chats of sixteen questions with the embedded pair: tokens a second by how proposals come about,
and turn by turn.

The questions are in phrasings that training never saw. Modes take turns, chat after chat, on the
same three services; the first chats are there to learn from and are not counted. A turn's speed is
of the whole turn, its prompt included.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from benchmarks.report import Picture, Report, add_output
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from slipstream.hosting.tokenizer_files import embedded_directory
from training import corpus
from training.dialogues import HELD_OUT_PHRASINGS, held_out_question

MODES = {
    "off": Settings(draft_length=0),
    "K = 8": Settings(draft_length=8),
    "adaptive": Settings(draft_length="adaptive"),
}
_SHOWN_TURNS = (1, 8, 16)


def questions(turn_count: int, number: int) -> list[str]:
    """Return the questions of chat ``number``."""
    rng = random.Random(number)
    entries = rng.sample(corpus.read(embedded_directory("target").parent / "symbols.jsonl"), turn_count)
    return [held_out_question(entry, rng.choice(HELD_OUT_PHRASINGS))[0]["content"] for entry in entries]


def chat(client: Client, texts: Sequence[str], settings: Settings) -> list[Result]:
    """Run one chat, and return its turns."""
    with client.chat(settings=settings) as session:
        results = [session.send(text).wait() for text in texts]
        session.delete()
    return results


def speed(results: Sequence[Result]) -> float:
    """Return the tokens a second of some turns."""
    return sum(result.generated_token_count for result in results) / sum(result.total_time for result in results)


def acceptance(results: Sequence[Result]) -> str:
    """Return accepted over proposed draft tokens."""
    drafted = sum(result.draft_token_count for result in results)
    return f"{sum(result.accepted_token_count for result in results) / drafted:.3f}" if drafted else ""


def measure(client: Client, options: argparse.Namespace, temperature: float, progress: Progress) -> list[list[str]]:
    """Return a row for each mode."""
    chats: dict[str, list[list[Result]]] = {name: [] for name in MODES}
    count = options.learning + options.repetitions
    task = progress.add_task(f"T = {temperature:g}", total=count * len(MODES))
    for number in range(count):
        for name, mode in MODES.items():
            settings = replace(mode, temperature=temperature, seed=number, max_token_count=options.max_tokens)
            results = chat(client, questions(options.turns, number), settings)
            if number >= options.learning:
                chats[name].append(results)
            progress.advance(task)
    rows = []
    for name, counted in chats.items():
        rates = [speed(results) for results in counted]
        over = {
            other: statistics.median(a / speed(b) for a, b in zip(rates, chats[other], strict=True))
            for other in ("off", "K = 8")
        }
        turns = list(zip(*counted, strict=True))
        plain = list(zip(*chats["off"], strict=True))
        slowest = min(speed(turn) / speed(same) for turn, same in zip(turns, plain, strict=True))
        rows.append(
            [
                f"{temperature:g}",
                name,
                f"{statistics.median(rates):.0f}",
                *(f"{ratio:.2f}" for ratio in over.values()),
                *(f"{speed(turns[turn - 1]):.0f}" for turn in _SHOWN_TURNS if turn <= len(turns)),
                f"{slowest:.2f}",
                acceptance([result for results in counted for result in results]),
            ]
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chats", description=__doc__)
    parser.add_argument("--turns", type=int, default=16, help="questions a chat")
    parser.add_argument("--repetitions", type=int, default=5, help="counted chats of each mode")
    parser.add_argument("--learning", type=int, default=2, help="chats of each mode before them")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens an answer may have")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--target", type=Path, default=embedded_directory("target"), help="target model's directory")
    parser.add_argument("--draft", type=Path, default=embedded_directory("draft"), help="draft model's directory")
    parser.add_argument("--name", default="chats", help="of the files in the output directory")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report(options.name, __doc__ or "", options.output)
    table = Table(title=f"chats of {options.turns} turns, tokens/s; ratios: medians over chats")
    turns = [f"turn {turn}" for turn in _SHOWN_TURNS if turn <= options.turns]
    columns = ("T", "mode", "tokens/s", "x off", "x K = 8", *turns, "slowest turn x off", "acceptance")
    for column in columns:
        table.add_column(column, justify="left" if column == "mode" else "right")
    pair = PairSettings(target=str(options.target), draft=str(options.draft))
    with (
        LocalServices(pair) as local,
        Client(local.orchestrator_address) as client,
        Progress(console=report.console) as progress,
    ):
        for temperature in options.temperatures:
            for row in measure(client, options, temperature, progress):
                table.add_row(*row)
    report.show(table, Picture("mode", ("tokens/s",), by="T", bars=True))


if __name__ == "__main__":
    main()
