"""Count the questions that a stock engine is asked for a token.

A server tells the log-probabilities of the N likeliest tokens, and something about ids. Texts are
drawn from the model at each rule, so that the rows are those that a chat meets. The table says how
many rows N likeliest tokens settle alone. Then it says how many questions a token takes, and how
many numbers they and their answers have, of three servers. One lists 20 tokens at most and tells
the likeliest of the ids asked for, as vLLM does by default. One lists any number of tokens. One
tells all ids, as SGLang does. For "open" rows they do not settle the choice.
`slipstream.sampling.partial` says when a choice is certain.

The last rows of the table are synthetic: a vocabulary of 256,000 tokens whose probabilities fall by
Zipf's law, p ~ 1 / (rank + 2.7)^s.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.report import Report, add_output
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling.choose import choose
from slipstream.sampling.partial.decide import decide
from slipstream.sampling.partial.known import PartialRow
from slipstream.sampling.row import Choice, Row
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.softmax import log_softmax
from slipstream.stock.choosing import Chooser
from slipstream.stock.protocol import Ask, EngineRefusedError, StockFacts, StockRow

RULES = {
    "T = 0": SamplingRule(),
    "T = 0.5": SamplingRule(temperature=0.5),
    "T = 0.8": SamplingRule(temperature=0.8),
    "T = 1": SamplingRule(temperature=1.0),
    "T = 1.5": SamplingRule(temperature=1.5),
    "T = 2": SamplingRule(temperature=2.0),
    "T = 0.8, top-k 40": SamplingRule(temperature=0.8, top_k=40),
    "T = 1, top-p 0.95": SamplingRule(temperature=1.0, top_p=0.95),
    "T = 1.5, min-p 0.05": SamplingRule(temperature=1.5, min_p=0.05),
    "T = 2, top-p 0.999": SamplingRule(temperature=2.0, top_p=0.999),
}
QUESTIONS = (
    "What is the capital of France?",
    "Write a short story about a lighthouse.",
    "How do I sort a list in Python?",
    "Name three animals that live in the sea, and say what they eat.",
)
LIKELIEST = (20, 100, 1000)
MOST_IDS = {"best id": 128, "all ids": 4096}
"""Ids that one question has at most, as the verifier asks vLLM and SGLang."""
SERVERS = ((20, "best id"), (None, "best id"), (None, "all ids"))
"""Most of the likeliest tokens that a server lists, None: all, and what it tells of ids."""
_ZIPF_SHIFT = 2.7

Floats32 = NDArray[np.float32]


class Server:
    """A server that tells parts of one row: ``limit`` likeliest tokens at most, and of the ids all
    or the best one."""

    def __init__(self, logprobs: Floats32, limit: int, tells_best_id: bool) -> None:
        self.question_count = self.number_count = 0
        self._logprobs = logprobs
        self._limit = limit
        self._tells_best_id = tells_best_id
        self._order = np.argsort(-logprobs, kind="stable")

    async def score(self, ask: Ask) -> list[StockRow]:
        """Answer a question about the row."""
        top = self._order[: max(1, min(self._limit, ask.wanted.likeliest_count))].tolist()
        ids = ask.wanted.token_ids
        self.question_count += 1
        self.number_count += len(top) + len(ids)
        told = [max(ids, key=lambda token: self._logprobs[token])] if ids and self._tells_best_id else ids
        row = PartialRow.of(len(self._logprobs), self._pairs(top), self._pairs(told))
        if ids and self._tells_best_id:
            row = row.capped(ids, float(self._logprobs[told[0]]))
        return [StockRow(top[0], row)]

    def settles(self, row: Row, count: int) -> bool:
        """Return whether the ``count`` likeliest tokens alone decide a row."""
        known = PartialRow.of(len(self._logprobs), self._pairs(self._order[:count].tolist()))
        return isinstance(decide(known, row), Choice)

    def _pairs(self, tokens: Sequence[int]) -> list[tuple[int, float]]:
        return [(token, float(self._logprobs[token])) for token in tokens]


async def questions(logprobs: Floats32, row: Row, limit: int, ids: str) -> tuple[int, int, bool]:
    """Return how many questions a row takes, how many numbers are in them and their answers, and
    whether they settle it."""
    tells_best_id = ids == "best id"
    server: Any = Server(logprobs, limit, tells_best_id)  # not a whole StockEngine
    facts = StockFacts("a server", "a model", len(row.context) + 1, limit, MOST_IDS[ids], tells_best_id)
    chooser = Chooser(server, facts, len(logprobs))
    (found,) = await server.score(Ask(row.context, (), chooser.first_wanted([row], None)))
    try:
        choice = await chooser.choose(found, row, row.context, None)
    except EngineRefusedError:
        return server.question_count, server.number_count, False
    assert choice.token == choose(logprobs[np.newaxis], [row])[0].token
    return server.question_count, server.number_count, True


@torch.inference_mode()
def rows_of(model: Any, tokenizer: Any, rule: SamplingRule, length: int) -> list[tuple[Floats32, Row]]:
    """Return the rows of answers that the model's own choices by a rule make."""
    found = []
    for seed, question in enumerate(QUESTIONS):
        messages = [{"role": "user", "content": question}]
        tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        own, past = replace(rule, seed=seed), None
        for _ in range(length):
            left = tokens if past is None else tokens[-1:]
            output = model(torch.tensor([left]), past_key_values=past, use_cache=True)
            past = output.past_key_values
            logprobs = log_softmax(output.logits[0, -1].float().numpy())
            row = Row(own, len(tokens), list(tokens))
            found.append((logprobs, row))
            tokens.append(choose(logprobs[np.newaxis], [row])[0].token)
            if tokens[-1] == tokenizer.eos_token_id:
                break
    return found


def zipf_rows(size: int, exponent: float, rule: SamplingRule, count: int) -> list[tuple[Floats32, Row]]:
    """Return rows of synthetic log-probabilities that fall by Zipf's law over shuffled ids."""
    ranks = np.random.default_rng(0).permutation(size)
    logprobs = log_softmax((-exponent * np.log(ranks + 1 + _ZIPF_SHIFT)).astype(np.float32))
    return [(logprobs, Row(replace(rule, seed=seed), 100)) for seed in range(count)]


def add(table: Table, source: str, name: str, rows: Sequence[tuple[Floats32, Row]]) -> None:
    """Measure the rows of a rule and add them to the table."""
    size = len(rows[0][0])
    cells = [source, name]
    for count in LIKELIEST:
        alone = [Server(logprobs, size, False).settles(row, count) for logprobs, row in rows]
        cells.append(f"{100 * np.mean(alone):.0f}")
    for limit, ids in SERVERS:
        asked = [asyncio.run(questions(logprobs, row, limit or size, ids)) for logprobs, row in rows]
        open_share = 1 - np.mean([settled for _, _, settled in asked])
        mean = f"{np.mean([count for count, _, _ in asked]):.2f}"
        cells.append(f"{mean} ({100 * open_share:.0f} % open)" if open_share else mean)
        cells.append(f"{np.mean([numbers for _, numbers, _ in asked]):,.0f}")
    table.add_row(*cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partial_rows", description=__doc__)
    parser.add_argument(
        "--models", nargs="+", default=[str(embedded_directory("target"))], help="directories, .gguf files"
    )
    parser.add_argument("--length", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--synthetic", type=int, default=100, help="synthetic rows for each rule")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report("partial-rows", __doc__ or "", options.output)
    table = Table(title="questions to a stock engine for one token")
    for column in ("rows of", "rule"):
        table.add_column(column)
    for count in LIKELIEST:
        table.add_column(f"{count:,} settle, %", justify="right")
    for limit, ids in SERVERS:
        table.add_column(f"questions, {limit or 'any N'}, {ids}", justify="right")
        table.add_column("numbers", justify="right")
    for each in options.models:
        path = Path(each)
        source = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (path, {})
        tokenizer = AutoTokenizer.from_pretrained(source[0], **source[1])
        model = AutoModelForCausalLM.from_pretrained(source[0], dtype=torch.float32, **source[1]).eval()
        for name, rule in track(RULES.items(), path.name, console=report.console):
            add(table, path.name, name, rows_of(model, tokenizer, rule, options.length))
        table.add_section()
    for exponent in (1.0, 1.5):
        for name in track(("T = 0.8", "T = 1", "T = 2, top-p 0.999"), f"s = {exponent}", console=report.console):
            rows = zipf_rows(256_000, exponent, RULES[name], options.synthetic)
            add(table, f"256,000 tokens, s = {exponent:g}", name, rows)
    report.show(table)


if __name__ == "__main__":
    main()
