"""Evaluation of the embedded pair in phrasings that training never saw: exact answers and
acceptance, by turn and by phrasing.

The questions go through the three real services, as a client would send them. A chat's later turns
follow the pair's own answers.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track
from rich.table import Table

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from slipstream.hosting.tokenizer_files import embedded_directory
from training import corpus
from training.dialogues import HELD_OUT_PHRASINGS, held_out_question

console = Console(width=max(160, Console().width))


@dataclass(frozen=True)
class Asked:
    """A question of a chat, and its answer."""

    turn: int
    phrasing: str
    exact: bool
    result: Result


def chat(client: Client, entries: Sequence[corpus.Entry], settings: Settings, rng: random.Random) -> list[Asked]:
    """Run one chat with a question about each entry."""
    asked = []
    with client.chat(settings=settings) as session:
        for turn, entry in enumerate(entries, 1):
            phrasing = rng.choice(HELD_OUT_PHRASINGS)
            result = session.send(held_out_question(entry, phrasing)[0]["content"]).wait()
            asked.append(Asked(turn, phrasing, result.text == entry.answer, result))
    return asked


def acceptance_by_position(results: list[Result]) -> list[float]:
    """Return for each position the share of proposals with that position in which it was
    accepted."""
    width = max(len(result.drafted_per_position) for result in results)
    drafted, accepted = [0] * width, [0] * width
    for result in results:
        for position, count in enumerate(result.drafted_per_position):
            drafted[position] += count
            accepted[position] += result.accepted_per_position[position]
    return [a / d for a, d in zip(accepted, drafted, strict=True)]


def acceptance(results: list[Result]) -> float:
    """Return accepted over proposed draft tokens."""
    return sum(r.accepted_token_count for r in results) / sum(r.draft_token_count for r in results)


def _row(asked: list[Asked]) -> tuple[str, ...]:
    results = [question.result for question in asked]
    rounds = sum(result.draft_count for result in results)
    return (
        str(len(asked)),
        f"{sum(question.exact for question in asked) / len(asked):.1%}",
        f"{acceptance(results):.3f}",
        " ".join(f"{share:.2f}" for share in acceptance_by_position(results)),
        f"{sum(result.speculative_token_count for result in results) / rounds:.2f}",
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=60, help="chats to hold at each temperature")
    parser.add_argument("--turns", type=int, default=16, help="questions of each")
    parser.add_argument("--seed", type=int, default=1, help="of what is asked")
    parser.add_argument("--draft-length", type=int, default=5, help="draft tokens a round")
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16 or float32")
    options = parser.parse_args()
    entries = corpus.read(embedded_directory("target").parent / "symbols.jsonl")
    title = f"{options.chats} chats of {options.turns} questions, held-out phrasings, {options.dtype}"
    table = Table(title=title)
    for column in ("temperature", "questions", "count", "exact answers", "acceptance", "by position", "mean length"):
        table.add_column(column, justify="left" if column == "questions" else "right")
    with LocalServices(PairSettings(dtype=options.dtype)) as local, Client(local.orchestrator_address) as client:
        for temperature in (0.0, 0.8):
            settings = Settings(temperature=temperature, seed=1, draft_length=options.draft_length)
            rng = random.Random(options.seed)
            asked = [
                question
                for _ in track(range(options.chats), f"temperature {temperature:g}", console=console)
                for question in chat(client, rng.sample(entries, options.turns), settings, rng)
            ]
            rows = {"all": asked}
            for turn in sorted({1, (options.turns + 1) // 2, options.turns}):
                rows[f"turn {turn}"] = [question for question in asked if question.turn == turn]
            for phrasing in HELD_OUT_PHRASINGS:
                rows[phrasing.format("X")] = [question for question in asked if question.phrasing == phrasing]
            for name, questions in rows.items():
                if questions:
                    table.add_row(f"{temperature:g}", name, *_row(questions))
            table.add_section()
    console.print(table)


if __name__ == "__main__":
    main()
