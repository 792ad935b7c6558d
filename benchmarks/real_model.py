"""SmolLM2-135M-Instruct from its GGUF file, in three processes over gRPC, beside llama.cpp's own
server with the same file.

The draft is the same file, whose step takes as long as the target's: speculation can win by
n-grams alone, and must not lose. All systems answer the same questions, at one stream and at eight,
on a quiet machine or beside a spinning process for each processor. After each question, or each
eight, the next system has its turn, in a random order. A ratio is the median over the repetitions
of the times of both.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.report import Picture, Report, add_output
from benchmarks.systems import Limits, Prompts, System, llamacpp_systems, slipstream_system
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from slipstream.hosting.tokenizer_json import TOKENIZER_FILE
from tools.fetch_model import fetch

QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Write a short poem about the sea.",
    "Explain to a child why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List five animals that live in Africa.",
    "Rewrite this list in alphabetical order: pear, apple, cherry, banana, apricot, plum, fig, lemon.",
    "Correct the spelling: 'Yesterdy I went to the libary and borowed three intresting books about anceint Rome.'",
    "Translate into French: 'The small cat sleeps on the warm roof while the big dog waits below.'",
)

MODES: dict[str, Settings] = {
    "off": Settings(draft_length=0),
    "n-grams": Settings(draft_length="adaptive", proposer="ngram"),
    "draft, K=4": Settings(draft_length=4),
    "draft": Settings(draft_length="adaptive", proposer="draft"),
    "on": Settings(draft_length="adaptive"),
}

_SPIN = "while True: pass"


def prompts(model: Path, count: int) -> list[list[int]]:
    """Return so many questions as ids under the file's template."""
    tokenizer = Tokenizer.from_str(load_tokenizer_files(str(model)).files[TOKENIZER_FILE].decode())
    said = [
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        for question in itertools.islice(itertools.cycle(QUESTIONS), count)
    ]
    return [encoding.ids for encoding in tokenizer.encode_batch(said, add_special_tokens=False)]


@contextmanager
def other_work(is_busy: bool) -> Iterator[None]:
    """Run a process that spins for each processor, if the machine is to be busy."""
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range((os.cpu_count() or 1) * is_busy)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def measure(systems: Sequence[System], questions: Prompts, streams: int, repetitions: int, progress: Progress) -> None:
    """Let the systems take turns at every ``streams`` questions, after a repetition that warms
    up."""
    draw = random.Random(0)
    batches = [questions[start : start + streams] for start in range(0, len(questions), streams)]
    task = progress.add_task(f"{streams} at a time", total=(repetitions + 1) * len(batches) * len(systems))
    for repetition in range(repetitions + 1):
        tokens: dict[str, int] = defaultdict(int)
        seconds: dict[str, float] = defaultdict(float)
        for batch in batches:
            for system in draw.sample(systems, len(systems)):
                started = time.perf_counter()
                tokens[system.name] += system.answer(batch)
                seconds[system.name] += time.perf_counter() - started
                progress.advance(task)
        for system in systems:
            if repetition:
                system.rates.append(tokens[system.name] / seconds[system.name])
            else:
                system.results.clear()


def median_ratio(one: System, other: System) -> str:
    """Return the median over the repetitions of the speed of ``one`` over ``other``."""
    return f"{statistics.median(a / b for a, b in zip(one.rates, other.rates, strict=True)):.2f}"


def table_of(measured: dict[tuple[int, str], list[System]]) -> Table:
    """Return tokens/s and ratios for each number of streams, quiet and busy."""
    table = Table(title="SmolLM2-135M, Q4_1: tokens/s are medians; ratios are medians within one repetition")
    for column in ("streams", "machine", "system", "tokens/s", "x llama.cpp", "x off", "acceptance"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for (streams, machine), systems in measured.items():
        by_name = {system.name: system for system in systems}
        for system in systems:
            table.add_row(
                str(streams),
                machine,
                system.name,
                f"{statistics.median(system.rates):.0f}",
                median_ratio(system, by_name["llama.cpp"]),
                median_ratio(system, by_name["Slipstream off"]),
                "" if system.acceptance is None else f"{system.acceptance:.2f}",
            )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_model", description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("build/models"), help="where the file is kept")
    parser.add_argument("--draft", type=Path, help="another GGUF file with the same tokenizer as the draft")
    parser.add_argument("--prompts", type=int, default=8, help="questions in each repetition")
    parser.add_argument("--repetitions", type=int, default=5, help="counted repetitions; one more warms up")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens an answer may have")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], help="questions at a time")
    parser.add_argument("--machines", nargs="+", default=["quiet", "busy"], choices=["quiet", "busy"])
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES), help="beside off")
    parser.add_argument(
        "--llamacpp-lengths", type=int, nargs="*", default=[4], help="most draft tokens of llama.cpp's own speculation"
    )
    parser.add_argument("--name", default="real", help="of the files in the output directory")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report(options.name, __doc__ or "", options.output)
    model = fetch("smollm2", options.models)
    draft = options.draft or model
    questions = prompts(model, max(options.prompts, *options.streams))
    measured: dict[tuple[int, str], list[System]] = {}
    pair = PairSettings(target=str(model), draft=str(draft))
    with (
        Progress(console=report.console) as progress,
        LocalServices(pair) as local,
        Client(local.orchestrator_address) as client,
    ):
        for streams in options.streams:
            limits = Limits(0.0, options.max_tokens, streams)
            systems = llamacpp_systems(limits, model, draft, options.llamacpp_lengths)
            for name in ("off", *(mode for mode in options.modes if mode != "off")):
                systems.append(slipstream_system(client, f"Slipstream {name}", limits, MODES[name]))
            for machine in options.machines:
                fresh = [replace(system, rates=[]) for system in systems]
                with other_work(machine == "busy"):
                    measure(fresh, questions, streams, options.repetitions, progress)
                measured[streams, machine] = fresh
    report.show(table_of(measured), Picture("system", ("tokens/s",), by="streams", bars=True))


if __name__ == "__main__":
    main()
