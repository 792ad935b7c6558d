"""Measure what collecting costs, in processor time of the thread that pays.

The first table is the time of one row: on the model thread, which copies the row's logits, and on
the collecting thread, which finds the 64 likeliest tokens. The second one is the time of a token of
the embedded target in multi-step runs: with collecting off, with it on for other sequences than
these, and with these collected. One thread computes. Processor time hardly depends on other work.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from rich.table import Table

from benchmarks.report import Report, add_output
from slipstream.distilling.collector import Collector
from slipstream.distilling.open_records import OpenRecords, SeenRows
from slipstream.distilling.records import TargetFacts
from slipstream.distilling.shard_writer import ClaimedFolder, ShardWriter
from slipstream.distilling.totals import CollectTotals
from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint
from slipstream.engine.engine import Append, Engine
from slipstream.engine.row_observer import ObservedRows
from slipstream.engine.sequence import Sequence as CachedSequence
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling.blocks import BlockedLogits
from slipstream.sampling.rule import SamplingRule

SIZES = (4096, 32_000, 128_256)
CONTEXT = 2000
STEPS = 64
BATCHES = (1, 8)


@contextmanager
def collector(share: float, vocabulary_size: int) -> Iterator[Collector]:
    """A collector into a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        facts = TargetFacts("target", "", "", 0, vocabulary_size)
        writer = ShardWriter(ClaimedFolder(Path(folder, "collected")), facts, max_bytes=2**28, with_text=True)
        made = Collector(writer, CollectTotals(), share=share)
        yield made
        made.close()


def microseconds(work: Callable[[], object], repetitions: int, count: int = 20) -> float:
    """Return the median processor time of this thread for one call."""
    times = []
    for _ in range(repetitions):
        started = time.thread_time()
        for _ in range(count):
            work()
        times.append((time.thread_time() - started) / count * 1e6)
    return median(times)


def measure_rows(report: Report, repetitions: int) -> None:
    """Show the time of a row by vocabulary and dtype."""
    table = Table(title=f"microseconds a row, {CONTEXT} tokens of context")
    for column in ("vocabulary", "logits", "model thread", "collecting thread"):
        table.add_column(column, justify="right")
    sequence = CachedSequence("a", array("q", range(CONTEXT)))
    for size in SIZES:
        logits = np.random.default_rng(0).normal(0, 3, (1, size)).astype(np.float32)
        for name, stored in (("float32", logits), ("bfloat16", (logits.view(np.int32) >> 16).astype(np.int16))):
            blocked = BlockedLogits(stored)
            rows = ObservedRows(sequence, CONTEXT, (), (5,), blocked)
            seen = SeenRows("a", sequence.tokens, (), (5,), blocked.stored)
            with collector(1.0, size) as watching:

                def observe(rows: ObservedRows = rows, watching: Collector = watching) -> None:
                    watching.observe(rows)
                    watching._waiting_bytes = 0  # so that none is dropped

                copying = microseconds(observe, repetitions)
            records = OpenRecords(time.monotonic)
            finding = microseconds(lambda seen=seen, records=records: records.add(seen), repetitions)  # type: ignore[misc]
            table.add_row(f"{size:,}", name, f"{copying:.0f}", f"{finding:.0f}")
    report.show(table)


def measure_tokens(report: Report, repetitions: int) -> None:
    """Show the model thread's time for a token of the embedded target."""
    backend = load_compiled_checkpoint(
        str(embedded_directory("target")), dtype="bfloat16", page_size=16, single_rows=False, threads=1
    )
    engine = Engine(backend, kv_memory_mib=64)
    table = Table(title=f"ms of the model thread for a token, runs of {STEPS} steps, {CONTEXT // 10} tokens of context")
    for column in ("sequences", "off", "on, none of these", "on, one of these", "on, all of these"):
        table.add_column(column, justify="right")
    for batch in BATCHES:
        times: dict[float, list[float]] = {0.0: [], -1.0: [], 1 / batch: [], 1.0: []}
        with collector(1.0, engine.model.vocabulary_size) as watching:
            for _ in range(repetitions):
                for share in times:
                    names = [f"{at}" for at in range(batch)]
                    watched = set(names[: round(batch * max(0.0, share))])
                    watching.watches = lambda sequence, watched=watched: sequence.handle in watched  # type: ignore[method-assign,misc]
                    engine.observer = None if share == 0 else watching
                    times[share].append(_token_time(engine, names))
        off = median(times[0.0])
        cells = [f"{off * 1e3:.3f}"]
        for share in (-1.0, 1 / batch, 1.0):
            ratio = median(one / other for one, other in zip(times[share], times[0.0], strict=True))
            cells.append(f"{median(times[share]) * 1e3:.3f} (x {ratio:.2f})")
        table.add_row(str(batch), *cells)
    report.show(table)


def _token_time(engine: Engine, names: Sequence[str]) -> float:
    sequences = [CachedSequence(name) for name in names]
    appends = []
    for sequence in sequences:
        engine.cache.extend(sequence, [*range(5, 5 + CONTEXT // 10)])
        appends.append(Append(sequence, len(sequence), 1, SamplingRule(), committed_length=len(sequence)))
    for sequence, answer in zip(sequences, engine.step(appends), strict=True):
        engine.cache.extend(sequence, [answer.choices[0].token])
    rule = SamplingRule()
    appends = [Append(sequence, 1, 1, rule, committed_length=len(sequence)) for sequence in sequences]
    started = time.thread_time()
    answers = engine.steps(appends, STEPS)
    spent = time.thread_time() - started
    for sequence in sequences:
        engine.release_sequence(sequence)
    return spent / sum(map(len, answers))


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=9)
    add_output(parser)
    arguments = parser.parse_args()
    report = Report("collecting", __doc__ or "", arguments.output)
    measure_rows(report, arguments.repetitions)
    measure_tokens(report, arguments.repetitions)


if __name__ == "__main__":
    main()
