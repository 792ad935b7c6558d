"""A draft with another vocabulary beside the embedded draft: how often the target accepts, and what
the translation costs.

Acceptance is of hints of a fixed length, on questions in phrasings that no training saw. Both
drafts answer the same questions under the same seeds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

from rich.progress import track
from rich.table import Table

from benchmarks.report import Report, add_output
from draft_service.door import Start
from draft_service.translation.spelling import Spelling
from draft_service.translation.translated import TwoVocabularies
from draft_service.translation.vocabularies import Vocabularies
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from slipstream.engine.hinting.hints import Hint, Source
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from slipstream.sampling.rule import SamplingRule
from training import corpus
from training.dialogues import held_out_question
from training.evaluate import acceptance
from training.other_vocabulary import DIRECTORY

CASES = tuple(product((0.0, 0.8, 1.0), (False, True)))
"""Temperatures, and whether answers go on past their end, where both models know little."""


def answers(client: Client, entries: Sequence[corpus.Entry], settings: Settings) -> list[Result]:
    """Ask a question about each entry."""

    def answer(seed: int, entry: corpus.Entry) -> Result:
        messages = [(m["role"], m["content"]) for m in held_out_question(entry)]
        return client.answer(messages, replace(settings, seed=seed)).wait()

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(answer, range(len(entries)), entries))


def accepted(drafts: dict[str, str], options: argparse.Namespace) -> list[tuple[str, ...]]:
    """Return rows of acceptance by case: each draft, and the second over the first."""
    entries = corpus.read(embedded_directory("target").parent / "symbols.jsonl")
    samples = [random.Random(repetition).sample(entries, options.prompts) for repetition in range(options.repetitions)]
    found: dict[tuple[float, bool, str], list[float]] = {}
    texts: dict[tuple[int, float, bool], list[str]] = {}
    for name, draft in drafts.items():
        with LocalServices(PairSettings(draft=draft)) as local, Client(local.orchestrator_address) as client:
            for (temperature, goes_on), repetition in track([*product(CASES, range(options.repetitions))], name):
                settings = Settings(
                    temperature=temperature,
                    draft_length=options.draft_length,
                    max_token_count=options.tokens,
                    ignore_end_tokens=goes_on,
                )
                results = answers(client, samples[repetition], settings)
                said = [result.text for result in results]
                assert texts.setdefault((repetition, temperature, goes_on), said) == said, "a draft has changed a text"
                found.setdefault((temperature, goes_on, name), []).append(acceptance(results))
    rows = []
    for temperature, goes_on in CASES:
        each = [found[temperature, goes_on, name] for name in drafts]
        ratios = [other / same for same, other in zip(*each, strict=True)]
        figures = [f"{statistics.median(values):.3f}" for values in [*each, ratios]]
        answered = "past their end" if goes_on else "to their end"
        rows.append((answered, f"{temperature:g}", *figures, f"{min(ratios):.3f} to {max(ratios):.3f}"))
    return rows


def _microseconds(work: Callable[[], object], count: int) -> float:
    begun = time.thread_time()
    for _ in range(count):
        work()
    return (time.thread_time() - begun) / count * 1e6


def costs(target: Spelling, draft: Spelling, text: str) -> tuple[float, float, float, float]:
    """Return microseconds of a start with the text as its prompt, of a commit of five tokens and of
    a hint of 16 draft tokens, and KiB of a handle."""
    tokens = target.encode(text).tokens
    vocabularies = Vocabularies(target, draft, ())
    start = Start(0, tokens, 2**30, 0, 0.0, SamplingRule())

    def begin(handle: str = "") -> None:
        door.forget(handle)
        door.open(handle, start).begin()

    door = TwoVocabularies(vocabularies, 2**20)
    begin()
    starting = _microseconds(begin, 5)
    tracemalloc.start()
    begin("kept")
    kib = tracemalloc.get_traced_memory()[0] / 1024
    tracemalloc.stop()
    telling = door.open("told", start)
    held = telling.begin().text
    more = (target.encode(text).tokens * 3)[:2000]
    pieces = iter([more[at : at + 5] for at in range(0, len(more), 5)])
    committing = _microseconds(lambda: telling.add(telling.length, next(pieces), 0.0), 300)
    path = (*held.known[1].tokens, *draft.encode(" which joins one or more path components intelligently").tokens)[:16]
    hint = Hint(held.length, path, (0.5,) * len(path), Source.DRAFT)
    return starting, committing, _microseconds(lambda: telling.hint(hint), 300), kib


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of text."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.other_vocabulary", description=__doc__)
    parser.add_argument("--draft", type=Path, default=DIRECTORY, help="directory of the draft with another vocabulary")
    parser.add_argument("--tokenizers", type=Path, help="folder of real tokenizers, to measure the cost with")
    parser.add_argument("--pairs", nargs="*", default=["qwen3:llama3", "llama3:gemma3", "gemma3:qwen3"])
    parser.add_argument("--prompts", type=int, default=40, help="questions in a repetition")
    parser.add_argument("--repetitions", type=int, default=5, help="0: measure the cost alone")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--draft-length", type=int, default=5, help="hint tokens a step")
    add_output(parser)
    options = parser.parse_args()
    report = Report("other_vocabulary", "A draft with another vocabulary.", options.output)
    if options.repetitions:
        drafts = {"one vocabulary": "embedded", "two vocabularies": str(options.draft)}
        title = f"acceptance of hints of {options.draft_length} tokens, {options.prompts} questions a repetition"
        columns = ("answers", "temperature", *drafts, "ratio", "ratio's range")
        report.show(table_of(f"{title}, medians of {options.repetitions}", columns, accepted(drafts, options)))
    named = {"embedded": [embedded_directory("target"), options.draft]}
    for pair in options.pairs if options.tokenizers else []:
        named[pair] = [options.tokenizers / name for name in pair.split(":")]
    text = " ".join(entry.answer for entry in corpus.read(embedded_directory("target").parent / "symbols.jsonl"))[:8000]
    rows = []
    for name, directories in named.items():
        spellings = [Spelling(load_tokenizer_files(str(each), weights=False)) for each in directories]
        rows.append((name, *(f"{figure:,.0f}" for figure in costs(spellings[0], spellings[1], text))))
    costly = ("target:draft", "start of 8,000 characters", "commit of 5 tokens", "hint of 16 tokens", "KiB of a handle")
    report.show(table_of("microseconds of the event loop's processor time, and memory", costly, rows))


if __name__ == "__main__":
    main()
