"""The learnt sharpening beside fixed factors on the embedded pair: how often the target accepts.

A coupled text does not depend on the draft, so the same answers judge every factor. ``learnt`` is
counted after the answers to other questions.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from rich.progress import Progress
from rich.table import Table

from benchmarks.report import Report, add_output
from orchestrator.speculation.sharpening import FACTORS
from slipstream.cli.local import LocalServices, PairSettings, Service, free_address
from slipstream.client import Client, Result, Settings
from slipstream.hosting.tokenizer_files import embedded_directory
from training import corpus
from training.dialogues import held_out_question
from training.evaluate import acceptance


def answers(address: str, entries: Sequence[corpus.Entry], settings: Settings, streams: int) -> list[Result]:
    """Return answers to questions about ``entries``, each with its own seed."""

    def answer(seed: int, entry: corpus.Entry) -> Result:
        messages = [(m["role"], m["content"]) for m in held_out_question(entry)]
        return client.answer(messages, replace(settings, seed=seed)).wait()

    with Client(address) as client, ThreadPoolExecutor(streams) as pool:
        return list(pool.map(answer, range(len(entries)), entries))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharpening", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="questions counted")
    parser.add_argument("--lessons", type=int, default=200, help="other questions that the learnt factor learns from")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0])
    parser.add_argument("--draft-length", type=int, default=5, help="draft tokens a round")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens an answer may have")
    parser.add_argument("--streams", type=int, default=8, help="answers at a time")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report("sharpening", __doc__ or "", options.output)
    entries = corpus.read(embedded_directory("target").parent / "symbols.jsonl")
    drawn = random.Random(1).sample(entries, options.count + options.lessons)
    counted, lessons = drawn[: options.count], drawn[options.count :]
    factors: list[float | None] = [*FACTORS, None]
    table = Table(title=f"{options.count} questions, K = {options.draft_length}, bfloat16: accepted / tried")
    for column in ("temperature", *(f"{factor:g}" for factor in FACTORS), "learnt", "learnt x best"):
        table.add_column(column, justify="right")
    with LocalServices(PairSettings()) as local, Progress(console=report.console) as progress:
        task = progress.add_task("answering", total=len(factors) * len(options.temperatures))
        for temperature in options.temperatures:
            settings = Settings(
                temperature=temperature, draft_length=options.draft_length, max_token_count=options.max_tokens
            )
            accepted: list[float] = []
            texts: set[tuple[tuple[int, ...], ...]] = set()
            for factor in factors:
                flags = ["--verifier", local.verifier_address, "--draft", local.draft_address]
                flags += [] if factor is None else ["--draft-sharpening", str(factor)]
                service = Service("orchestrator", "orchestrator", free_address(), flags, {})
                try:
                    service.wait_until_healthy(60)
                    if factor is None:
                        answers(service.address, lessons, settings, options.streams)
                    results = answers(service.address, counted, settings, options.streams)
                finally:
                    service.stop()
                accepted.append(acceptance(results))
                texts.add(tuple(tuple(result.token_ids) for result in results))
                progress.advance(task)
            assert len(texts) == 1, "the text depended on the draft"
            ratio = accepted[-1] / max(accepted[:-1])
            table.add_row(f"{temperature:g}", *(f"{share:.4f}" for share in accepted), f"{ratio:.3f}")
    report.show(table)


if __name__ == "__main__":
    main()
