"""Compare the best tree of n hint rows with the best chain of n hint rows.

Nothing is served. Recorded draws of a draft along the target's own text say which candidates would
have been right (`benchmarks.candidate_trees`), and measured curves of step times what rows cost.
Both ways choose their rows by the same price, with odds that are calibrated on the same text. In
*free* drafting costs nothing, so it bounds what a tree can win. In *in turn* each depth costs a
step of the draft, and draft and target wait for each other.

Run as ``python -m benchmarks.trees --output docs/benchmarks``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.candidate_trees import Node, Outcomes, Text, grow, learn, target_text
from benchmarks.report import Report, add_output
from benchmarks.weakened_draft import weaken
from slipstream.engine.engine import Append, Engine
from slipstream.engine.hinting.selection import best_prefix
from slipstream.engine.sequence import Sequence as CachedSequence
from slipstream.hosting.backends import backend_of
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling.rule import SamplingRule
from slipstream.step_times import StepTimes
from training import corpus
from training.dialogues import held_out_question
from verifier_service.settings import VerifierSettings

ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32)
SHOWN_ROWS = (1, 2, 3, 4, 8, 16, 32)
MOST_NODES, DEEPEST = 32, 16
_CONTEXT = 192
_REPETITIONS = 7
_HALVINGS = 9


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of steps of a target and of a draft, by rows."""

    name: str
    target: StepTimes
    draft: StepTimes


H200 = Curve(
    "H200, 8B and 1B",
    StepTimes([(1, 7.6e-3), (8, 7.73e-3), (64, 8.66e-3)]),
    StepTimes([(1, 1.34e-3), (8, 1.45e-3), (32, 1.82e-3), (64, 2.4e-3)]),
)
"""A plain round, and what choosing more rows adds to it, and the draft's step in a run
(docs/history/gpu.md). A forward has 128 rows in any case."""


def measured(settings: VerifierSettings, *, exact: bool) -> StepTimes:
    """Measure steps of one sequence whose rows all choose."""
    engine = Engine(backend_of(settings, settings.model, exact=exact), kv_memory_mib=settings.kv_memory_mib)
    sequence, rule = CachedSequence("curve"), SamplingRule()
    engine.cache.extend(sequence, [7] * _CONTEXT)
    engine.step([Append(sequence, _CONTEXT, 1, rule)])
    points = []
    for rows in ROWS:
        times = []
        for _ in range(engine.backend.settled_after + _REPETITIONS):
            engine.cache.extend(sequence, [7] * rows)
            started = time.perf_counter()
            engine.step([Append(sequence, rows, rows, rule, drafting=not exact)])
            times.append(time.perf_counter() - started)
            engine.cache.truncate(sequence, _CONTEXT)
        points.append((rows, min(times[engine.backend.settled_after :])))
    return StepTimes(points, engine.row_multiple)


def chain_of(nodes: Sequence[Node], deepest: int) -> list[Node]:
    """Return the draft's own first choices."""
    return [node for node in nodes if node.is_first and node.depth <= deepest]


def tree_of(nodes: Sequence[Node], deepest: int) -> list[Node]:
    """Return the nodes of the largest survivals, largest first: each after its parent."""
    kept = [node for node in nodes if node.depth <= deepest]
    return sorted(kept, key=lambda node: (-node.survival, node.depth))[:MOST_NODES]


Offered = Callable[[Sequence[Node], int], list[Node]]


def drafting_seconds(nodes: Sequence[Node], chosen: Sequence[Node], draft: StepTimes) -> float:
    """Return the seconds in which a draft finds chosen nodes: a step for each depth, of the nodes
    that have successors."""
    inner = {node.parent for node in chosen if node.parent >= 0}
    counts: dict[int, int] = {0: 1} if chosen else {}
    for index in inner:
        counts[nodes[index].depth] = counts.get(nodes[index].depth, 0) + 1
    return sum(draft.seconds(count) for count in counts.values())


def rate(
    texts: Sequence[Sequence[list[Node]]], offered: Offered, curve: Curve, deepest: int, *, is_free: bool
) -> float:
    """Return the tokens a second of a walk along the texts. Each step takes as many of the offered
    nodes as their price allows."""
    tokens, seconds = 0, 0.0
    for trees in texts:
        place = 0
        while place < len(trees):
            nodes = trees[place]
            kept = offered(nodes, deepest)
            chosen = kept[: best_prefix([node.survival for node in kept], 1.0, 1, curve.target)[0]]
            seconds += curve.target.seconds(1 + len(chosen))
            seconds += 0.0 if is_free else drafting_seconds(nodes, chosen, curve.draft)
            step = min(1 + sum(node.is_right for node in chosen), len(trees) - place)
            place += step
            tokens += step
    return tokens / seconds


def best_rate(texts: Sequence[Sequence[list[Node]]], offered: Offered, curve: Curve, *, is_free: bool) -> float:
    """Return the best rate over the depths that a draft may guess to, or plain decoding's."""
    depths = [DEEPEST] if is_free else [0, 1, 2, 3, 4, 6, 8, 12, 16]
    return max(rate(texts, offered, curve, deepest, is_free=is_free) for deepest in depths)


def mean_tokens(texts: Sequence[Sequence[list[Node]]], offered: Offered, count: int) -> float:
    """Return the mean tokens of a step that verifies ``count`` nodes, over all positions."""
    return 1 + statistics.fmean(
        sum(node.is_right for node in offered(nodes, DEEPEST)[:count]) for trees in texts for nodes in trees
    )


def prompts(count: int) -> Iterator[list[int]]:
    """Yield questions that the pair was not trained on."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("draft"))
    entries = corpus.read(embedded_directory("target").parent / "symbols.jsonl")
    for entry in random.Random(7).sample(entries, count):
        yield tokenizer.apply_chat_template(held_out_question(entry), add_generation_prompt=True, return_dict=False)


def model_of(role: str) -> Any:
    """Load one of the embedded models in float32."""
    directory = embedded_directory(role)
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa").eval()


def weakened(right: float, texts: Sequence[Text]) -> Any:
    """Return the embedded draft with so much noise in its weights that its first choice is right in
    a share of the texts' tokens. A share of 1 leaves it as it is."""
    draft = model_of("draft")
    if right >= 1:
        return draft
    own = {name: weight.detach().clone() for name, weight in draft.named_parameters()}
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weaken(draft, own, middle)
        outcomes = Outcomes()
        learn(draft, texts, outcomes)
        low, high = (middle, high) if outcomes.share(0) > right else (low, middle)
    weaken(draft, own, high)
    return draft


def curves(targets: Sequence[str]) -> list[Curve]:
    """Measure each ``NAME=MODEL[,ENGINE]`` on this machine, beside the embedded draft."""
    draft = measured(
        VerifierSettings(_cli_parse_args=[], model=str(embedded_directory("draft")), threads=1), exact=False
    )
    found = []
    for said in track(targets, "curves of step times"):
        name, _, place = said.partition("=")
        model, _, engine = place.partition(",")
        directory = str(embedded_directory("target")) if model == "embedded" else model
        settings = VerifierSettings(_cli_parse_args=[], model=directory, engine=engine or "auto")
        found.append(Curve(name, measured(settings, exact=True), draft))
    return [*found, H200]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--right", type=float, nargs="+", default=[1, 0.8, 0.7, 0.6], help="shares of right first choices"
    )
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48, help="tokens after each question, past an answer's end too")
    parser.add_argument("--curves", nargs="*", default=["16M, compiled=embedded"], metavar="NAME=MODEL[,ENGINE]")
    add_output(parser)
    options = parser.parse_args()
    report = Report("trees", __doc__ or "", options.output)
    known = curves(options.curves)
    times = Table(title=f"milliseconds of a step by rows after {_CONTEXT} tokens, the least of {_REPETITIONS}")
    rows_table = Table(title="mean tokens of a step by its hint rows, over all positions")
    gains = Table(title="tokens/s at one stream, of the best chain and the best tree")
    for column in ("rows", *(curve.name for curve in known), "draft, CPU"):
        times.add_column(column, justify="right")
    for column in ("draft", "T", "first right", "second right", "way", *(f"{rows}" for rows in SHOWN_ROWS)):
        rows_table.add_column(column, justify="right")
    for column in ("draft", "T", "first right", "curve", "plain", "chain, free", "tree, free", "gain, free"):
        gains.add_column(column, justify="right")
    for column in ("chain, in turn", "tree, in turn", "gain, in turn"):
        gains.add_column(column, justify="right")
    for rows in ROWS:
        steps = [*(curve.target for curve in known), known[0].draft]
        times.add_row(f"{rows}", *(f"{1e3 * step.seconds(rows):.2f}" for step in steps))
    report.show(times)
    target = model_of("target")
    for temperature in (0.0, 0.8):
        texts = _texts(target, options.questions, options.tokens, temperature)
        for right in options.right:
            _compare(right, temperature, texts, known, rows_table, gains)
    report.show(rows_table)
    report.show(gains)


def _texts(target: Any, questions: int, count: int, temperature: float) -> list[Text]:
    return [
        target_text(target, prompt, count, SamplingRule(temperature=temperature, seed=seed))
        for seed, prompt in track([*enumerate(prompts(questions))], f"texts at T = {temperature}")
    ]


def _compare(
    right: float, temperature: float, texts: Sequence[Text], known: Sequence[Curve], rows_table: Table, gains: Table
) -> None:
    draft, outcomes = weakened(right, texts), Outcomes()
    learn(draft, texts, outcomes)
    grown = [grow(draft, text, outcomes, MOST_NODES, DEEPEST) for text in track(texts, f"trees at {right:g}")]
    head = "weakened" if right < 1 else "embedded", f"{temperature:g}", f"{outcomes.share(0):.2f}"
    for way, offered in (("chain", chain_of), ("tree", tree_of)):
        means = [f"{mean_tokens(grown, offered, count):.2f}" for count in SHOWN_ROWS]
        rows_table.add_row(*head, f"{outcomes.share(1):.2f}", way, *means)
    for curve in known:
        rates = [
            best_rate(grown, offered, curve, is_free=is_free)
            for is_free in (True, False)
            for offered in (chain_of, tree_of)
        ]
        shown = [f"{value:.0f}" for value in rates]
        free, in_turn = rates[1] / rates[0], rates[3] / rates[2]
        plain = f"{1 / curve.target.seconds(1):.0f}"
        gains.add_row(*head, curve.name, plain, *shown[:2], f"{free:.2f}", *shown[2:], f"{in_turn:.2f}")


if __name__ == "__main__":
    main()
