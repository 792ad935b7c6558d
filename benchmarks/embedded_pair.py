"""The embedded pair on this machine: transformers plain and assisted, and Slipstream with and
without speculation.

In one run every system answers the same questions several times, each time in a random order: after
a long proposal the next system finds a draft that is still active. The table gives medians, and
ratios within each repetition. With several streams, only systems that can answer that many
questions at once take part.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.progress import Progress
from rich.table import Table
from transformers import AutoTokenizer, set_seed

from benchmarks import llamacpp_models, onnx_models
from benchmarks.report import Picture, Report, add_output
from benchmarks.systems import (
    MODES,
    ROUND_PARTS,
    Limits,
    System,
    llamacpp_systems,
    onnxruntime_systems,
    slipstream_systems,
    transformers_systems,
)
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.hosting.tokenizer_files import embedded_directory
from training import corpus
from training.dialogues import HELD_OUT_PHRASINGS, QUESTION_PHRASINGS


def prompts(count: int, phrasings: Sequence[str]) -> list[list[int]]:
    """Return questions about sampled symbols, as token ids under the chat template."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("target"))
    rng = random.Random(0)
    entries = rng.sample(corpus.read(embedded_directory("target").parent / "symbols.jsonl"), count)
    rendered = (
        tokenizer.apply_chat_template(
            [{"role": "user", "content": rng.choice(phrasings).format(entry.symbol)}],
            add_generation_prompt=True,
            tokenize=False,
        )
        for entry in entries
    )
    return [tokenizer.encode(text, add_special_tokens=False) for text in rendered]


def repeated(client: Client, question: list[int], max_tokens: int) -> list[int]:
    """Return a chat in which an answered question is asked again, so the answer can be copied."""
    answer = client.generate(question, Settings(temperature=0, draft_length=0, max_token_count=max_tokens)).wait()
    return [*question, *answer.token_ids, *question]


def measure(systems: Sequence[System], questions: list[list[int]], repetitions: int, report: Report) -> None:
    """Let the systems take turns, after one warm-up each."""
    draw = random.Random(0)
    with Progress(console=report.console) as progress:
        task = progress.add_task("measuring", total=(repetitions + 1) * len(systems))
        for repetition in range(repetitions + 1):
            for system in draw.sample(systems, len(systems)):
                set_seed(repetition)
                started = time.perf_counter()
                tokens = system.answer(questions)
                if repetition:
                    system.rates.append(tokens / (time.perf_counter() - started))
                else:
                    system.results.clear()
                progress.advance(task)


def median_ratio(one: System, other: System) -> float:
    """Return the median over the repetitions of the speed of ``one`` over ``other``."""
    return statistics.median(a / b for a, b in zip(one.rates, other.rates, strict=True))


def throughput_table(systems: Sequence[System]) -> Table:
    """Return tokens/s and ratios for each temperature."""
    table = Table(title="tokens/s: medians; ratios: medians within one run")
    columns = (
        "T",
        "system",
        "tokens/s",
        "x transformers",
        "x assisted",
        "x onnx",
        "x off",
        "acceptance",
        "mean length",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "system" else "right")
    for temperature in sorted({system.temperature for system in systems}):
        group = [system for system in systems if system.temperature == temperature]
        plain, assisted = group[:2]
        by_name = {system.name: system for system in group}
        bases = (plain, assisted, by_name.get("onnxruntime-genai speculative"), by_name["Slipstream off"])
        for system in group:
            accepted = sum(r.accepted_token_count for r in system.results)
            drafts = sum(r.draft_count for r in system.results)
            table.add_row(
                f"{temperature:g}",
                system.name,
                f"{statistics.median(system.rates):.0f}",
                *("" if base is None else f"{median_ratio(system, base):.2f}" for base in bases),
                "" if system.acceptance is None else f"{system.acceptance:.3f}",
                f"{1 + accepted / drafts:.2f}" if drafts else "",
            )
    return table


def round_table(systems: Sequence[System]) -> Table:
    """Return a table of the parts of a round, in milliseconds."""
    table = Table(title="milliseconds a round (means)")
    for column in ("T", "system", *ROUND_PARTS, "round", "hidden draft"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for system in systems:
        rounds = sum(r.round_count for r in system.results)
        if not rounds:
            continue
        parts = system.round_milliseconds
        hidden = sum(r.draft_hidden_time for r in system.results) / rounds * 1e3
        table.add_row(f"{system.temperature:g}", system.name, *(f"{ms:.2f}" for ms in (*parts, sum(parts), hidden)))
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedded_pair", description=__doc__)
    parser.add_argument("--prompts", type=int, default=20, help="questions in each repetition")
    parser.add_argument("--repetitions", type=int, default=5, help="counted repetitions; one more warms up")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens an answer may have")
    parser.add_argument("--streams", type=int, default=1, help="questions at a time")
    parser.add_argument("--target", type=Path, default=embedded_directory("target"), help="target model's directory")
    parser.add_argument("--draft", type=Path, default=embedded_directory("draft"), help="draft model's directory")
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES), help="of Slipstream")
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16 or float32, for every system")
    parser.add_argument("--draft-lengths", type=int, nargs="*", default=[8, 24], help="fixed lengths to measure too")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument(
        "--repeated", action="store_true", help="ask what the chat has answered already: a copy-heavy task"
    )
    parser.add_argument("--held-out", action="store_true", help="ask in phrasings that training never saw")
    parser.add_argument(
        "--onnxruntime", type=Path, metavar="DIRECTORY", help="beside onnxruntime-genai too; its models are kept there"
    )
    parser.add_argument(
        "--llamacpp", type=Path, metavar="DIRECTORY", help="beside llama.cpp too; its models are kept there"
    )
    parser.add_argument("--server", type=Path, help="a llama-server built for this machine; without, the wheel's")
    parser.add_argument("--llamacpp-lengths", type=int, nargs="*", default=[4, 8, 16], help="most draft tokens of its")
    parser.add_argument("--name", default="embedded_pair", help="of the files in the output directory")
    add_output(parser)
    return parser


def _systems(client: Client, options: argparse.Namespace) -> list[System]:
    """Return all compared systems, temperature by temperature."""
    exported = converted = None
    if options.onnxruntime is not None:
        exported = onnx_models.export(options.onnxruntime, options.target, options.draft)
    if options.llamacpp is not None:
        converted = llamacpp_models.converted(options.llamacpp, options.target, options.draft)
    systems: list[System] = []
    for temperature in options.temperatures:
        limits = Limits(temperature, options.max_tokens, options.streams)
        systems += transformers_systems(limits, options.target, options.draft, options.dtype)
        if exported is not None:
            systems += onnxruntime_systems(limits, exported)
        if converted is not None:
            systems += llamacpp_systems(limits, *converted, options.llamacpp_lengths, options.server)
        systems += slipstream_systems(client, limits, options.modes, options.draft_lengths)
    return systems


def show_engines(local: LocalServices, report: Report) -> None:
    """Name the engine of a model that compiled code does not serve: its figures belong to that
    engine."""
    for service in local.services.values():
        for line in service.log.read_text(errors="replace").splitlines():
            if " computes " in line:
                report.console.print(f"{service.name}: {line}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    options = _parser().parse_args(arguments)
    report = Report(options.name, __doc__ or "", options.output)
    wording = ("repeated " if options.repeated else "") + ("held-out" if options.held_out else "trained")
    report.console.print(
        f"{torch.get_num_threads()} torch threads, torch {torch.__version__}, {options.dtype}, {options.prompts} prompts "
        f"in {wording} phrasings, {options.streams} at a time, {options.repetitions} repetitions"
    )
    phrasings = HELD_OUT_PHRASINGS if options.held_out else QUESTION_PHRASINGS
    questions = prompts(options.prompts, phrasings)
    pair = PairSettings(target=str(options.target), draft=str(options.draft), dtype=options.dtype)
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        show_engines(local, report)
        systems = _systems(client, options)
        if options.repeated:
            questions = [repeated(client, question, options.max_tokens) for question in questions]
        measure(systems, questions, options.repetitions, report)
    report.show(throughput_table(systems), Picture("system", ("tokens/s",), by="T", bars=True))
    report.show(round_table(systems))


if __name__ == "__main__":
    main()
