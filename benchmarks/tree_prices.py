"""Price recorded chains and trees of hints with measured curves of step times.

`benchmarks.trees` records how many tokens a step makes by its hint rows. Each way takes the number
of rows that makes the most tokens a second, the same in every step; drafting costs nothing. So the
ratio bounds what a tree can win.
Run as ``python -m benchmarks.tree_prices docs/benchmarks/trees.json``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.step_times import StepTimes

TITLE = "tokens/s at one stream and hint rows, drafting free, one number of rows in all steps"
_MEANS = "mean tokens of a step by its hint rows"
_CURVES: Mapping[str, Sequence[tuple[int, float]]] = {
    "16M, AVX2": ((1, 1.89), (2, 2.57), (4, 2.57), (5, 4.21), (8, 4.76), (9, 6.88), (16, 9.49), (24, 13.5), (32, 22.9)),
    "16M, AMX": ((1, 1.03), (2, 1.12), (4, 1.21), (9, 1.6), (17, 1.8), (33, 2.3)),
    "488M, AMX": ((1, 40.7), (4, 41), (9, 42), (17, 52), (33, 62)),
    "8B, H200": ((1, 7.6), (8, 7.73), (64, 8.66)),
}
"""Milliseconds of a step of one sequence by rows: two busy AVX2 cores on 2026-11-29, two AMX cores
(decision 51), and a plain round of an H200 with the choice of more rows (docs/history/gpu.md)."""


def best(means: Mapping[int, float], times: StepTimes) -> tuple[float, int]:
    """Return the most tokens a second, and the hint rows that make them; none is plain decoding."""
    rates = {count: tokens / times.seconds(count + 1) for count, tokens in {0: 1.0, **means}.items()}
    count = max(rates, key=rates.__getitem__)
    return rates[count], count


def priced(means: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the rows of the table: each draft and temperature on each curve."""
    first = means["columns"].index("way") + 1
    counts = [int(column) for column in means["columns"][first:]]
    for chain, tree in zip(means["rows"][::2], means["rows"][1::2], strict=True):
        for name, points in _CURVES.items():
            times = StepTimes([(rows, milliseconds / 1e3) for rows, milliseconds in points])
            (slow, few), (fast, many) = (
                best(dict(zip(counts, map(float, row[first:]), strict=True)), times) for row in (chain, tree)
            )
            shown = [f"{slow:.0f}", f"{few}", f"{fast:.0f}", f"{many}", f"{fast / slow:.2f}"]
            yield [chain[1], chain[2], name, f"{1 / times.seconds(1):.0f}", *shown]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the file that benchmarks.trees has written; its table is replaced")
    path = parser.parse_args().file
    kept = json.loads(path.read_text())
    means = next(table for table in kept["tables"] if table["title"].startswith(_MEANS))
    columns = ["T", "first right", "curve", "plain", "chain", "chain rows", "tree", "tree rows", "x chain"]
    table = {"title": TITLE, "columns": columns, "rows": list(priced(means))}
    kept["tables"] = [table, *(other for other in kept["tables"] if other["title"] != TITLE)]
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
