"""Coupled sampling beside the ratio test on the embedded pair: how often the target accepts, at
several temperatures.

Both see the same prompts and seeds. Answers that go on past their end are where target and draft
know little and differ.
"""

from __future__ import annotations

import argparse
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from rich.console import Console
from rich.progress import track
from rich.table import Table

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from slipstream.hosting.tokenizer_files import embedded_directory
from training import corpus
from training.dialogues import held_out_question
from training.evaluate import acceptance, acceptance_by_position

TEMPERATURES = (0.8, 1.0, 1.3)
KINDS = {"coupled": False, "ratio test": True}
console = Console(width=120)


def answers(client: Client, entries: list[corpus.Entry], settings: Settings, streams: int) -> list[Result]:
    def answer(seed: int, entry: corpus.Entry) -> Result:
        messages = [(m["role"], m["content"]) for m in held_out_question(entry)]
        return client.answer(messages, replace(settings, seed=seed)).wait()

    with ThreadPoolExecutor(streams) as pool:
        return list(pool.map(answer, range(len(entries)), entries))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=80, help="prompts")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens an answer that goes on has")
    parser.add_argument("--draft-length", type=int, default=5, help="draft tokens a round")
    parser.add_argument("--streams", type=int, default=8, help="answers at a time")
    options = parser.parse_args()
    entries = corpus.read(embedded_directory("target").parent / "symbols.jsonl")
    sample = random.Random(1).sample(entries, options.count)
    table = Table(title=f"{options.count} prompts, K = {options.draft_length}, bfloat16")
    for column in ("temperature", "answers", "acceptance by", "accepted / drafted", "by position", "mean length"):
        table.add_column(column, justify="right")
    cases = [(t, goes_on, kind) for goes_on in (False, True) for t in TEMPERATURES for kind in KINDS]
    with LocalServices(PairSettings()) as local, Client(local.orchestrator_address) as client:
        for temperature, goes_on, kind in track(cases, "cases", console=console):
            settings = Settings(
                temperature=temperature,
                ratio=KINDS[kind],
                draft_length=options.draft_length,
                max_token_count=options.max_tokens,
                ignore_end_tokens=goes_on,
            )
            results = answers(client, sample, settings, options.streams)
            drafts = sum(result.draft_count for result in results)
            table.add_row(
                f"{temperature:g}",
                "past their end" if goes_on else "to their end",
                kind,
                f"{acceptance(results):.3f}",
                " ".join(f"{share:.2f}" for share in acceptance_by_position(results)),
                f"{sum(result.speculative_token_count for result in results) / drafts:.2f}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
