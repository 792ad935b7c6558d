"""Measure choosing tokens: rows x vocabulary x rule.

torch's own multinomial and transformers' processors choose from the same logits beside ours. Logits
are bfloat16 on the CPU unless ``--device`` says otherwise, normal with a spread like that of real
models. Logits of a device come to the host first, and that is counted.

The systems take turns. Each makes one call that is not counted, to fill the caches, and then one
that is. As in a service, threads share rows, and OpenMP's threads give their cores back soon. Every
cell is a median.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import slipstream.engine  # noqa: F401 # before torch: OpenMP's threads then spin as briefly as in a service, and leave the cores

# isort: split
import torch
from rich.progress import track
from rich.table import Table
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from benchmarks.report import Picture, Report, add_output
from slipstream.engine.torch.host_logits import host_logits
from slipstream.sampling.choose import choose
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.sharing import choose_with

CONTEXT_LENGTH = 1000
RULES = {
    "greedy": SamplingRule(),
    "T = 1": SamplingRule(temperature=1.0, seed=5),
    "T = 0.8, top-p 0.95": SamplingRule(temperature=0.8, top_p=0.95, seed=5),
    "T = 1, repetition penalty 1.1": SamplingRule(temperature=1.0, repetition_penalty=1.1, seed=5),
    "T = 1, top-k 50": SamplingRule(temperature=1.0, top_k=50, seed=5),
    "T = 1, 4,000 tokens biased": SamplingRule(
        temperature=1.0, logit_bias=tuple((token, 0.5) for token in range(4000)), seed=5
    ),
}


def processors_of(rule: SamplingRule) -> LogitsProcessorList:
    """Return the rule's processors in transformers, without its top-k and biases."""
    processors = LogitsProcessorList()
    if rule.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(rule.repetition_penalty))
    if rule.temperature not in (0, 1):
        processors.append(TemperatureLogitsWarper(rule.temperature))
    if rule.top_p < 1:
        processors.append(TopPLogitsWarper(rule.top_p))
    return processors


def systems(rule: SamplingRule, logits: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Return each system by name: a function that chooses from the logits."""
    count, device = len(logits), logits.device
    context = [index * 7 % 4000 for index in range(CONTEXT_LENGTH)]
    rows = [Row(rule, CONTEXT_LENGTH + index, context) for index in range(count)]
    ids = torch.tensor([context] * count, device=device)
    processors = processors_of(rule)
    biased, biases = (torch.from_numpy(array).to(device) for array in (rule.listed.biased, rule.listed.biases))

    def by_transformers() -> object:
        scores = processors(ids, logits.float())
        if rule.logit_bias:
            scores[:, biased] += biases
        if rule.top_k:
            scores = scores.masked_fill(scores < scores.topk(rule.top_k).values[:, -1:], -torch.inf)
        if rule.temperature == 0:
            return scores.argmax(dim=-1).tolist()
        return scores.softmax(dim=-1).multinomial(1).tolist()

    found: dict[str, Callable[[], object]] = {
        "Slipstream": from_device(logits, rows) if device.type == "cuda" else lambda: choose(host_logits(logits), rows),
        "transformers": by_transformers,
    }
    if rule.temperature:
        found["softmax and multinomial alone"] = lambda: logits.float().softmax(dim=-1).multinomial(1).tolist()
    return found


def from_device(logits: torch.Tensor, rows: list[Row]) -> Callable[[], object]:
    """Return a function that chooses from logits which come to the host as
    `slipstream.engine.torch.cuda.backend` copies them."""
    from slipstream.engine.torch.cuda.logits import HostLogits  # Triton, which need not be there

    host = HostLogits(logits.shape[1], logits.dtype, pinned=True)
    host.make_room(len(rows))

    def choose_there() -> object:
        host.fetch(logits, 0)
        torch.cuda.synchronize(logits.device)
        return choose(host.first(len(rows)), rows)

    return choose_there


def measured(calls: dict[str, Callable[[], object]], repetitions: int, device: str) -> dict[str, float]:
    """Return the median milliseconds of each system, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        for name, call in calls.items():
            call()
            if device != "cpu":
                torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(taken) for name, taken in times.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=__doc__)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[4096, 128_256])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--spread", type=float, default=2.5, help="standard deviation of the logits")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--device", default="cpu", help="torch device of the logits")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report("sampling", __doc__ or "", options.output)
    choose_with(torch.get_num_threads())
    report.console.print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {options.device}")
    table = Table(title="ms to choose, median")
    for column in ("vocabulary", "rule", "rows", "Slipstream", "x greedy", "transformers", "multinomial alone"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    cases = [(size, count) for size in options.vocabularies for count in options.rows]
    for size, count in track(cases, "cases", console=report.console):
        generator = torch.Generator().manual_seed(0)
        logits = (torch.randn(count, size, generator=generator) * options.spread).bfloat16().to(options.device)
        greedy = 0.0
        for name, rule in RULES.items():
            times = measured(systems(rule, logits), options.repetitions, options.device)
            ours, theirs, alone = (
                times.get(s) for s in ("Slipstream", "transformers", "softmax and multinomial alone")
            )
            greedy = ours if name == "greedy" and ours is not None else greedy
            cells = (ours, (ours or 0.0) / greedy, theirs, alone)
            table.add_row(f"{size:,}", name, str(count), *("" if value is None else f"{value:.2f}" for value in cells))
        table.add_section()
    report.show(table, Picture("rule", ("Slipstream", "transformers"), by="rows", bars=True, y_label="ms"))


if __name__ == "__main__":
    main()
