"""Reports of benchmarks: commit and machine, tables to read, and files to keep.

With an output directory each table is kept there as data (``NAME.json``), and as a picture
(``NAME.png``) if it has one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a table: columns ``ys`` over the column ``x``. With ``by``, one line for each
    value of that column. ``bars`` is for an ``x`` that is a name, ``log`` for an ``x`` that doubles
    from row to row."""

    x: str
    ys: tuple[str, ...]
    by: str | None = None
    bars: bool = False
    log: bool = False
    y_label: str = "tokens/s"


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the option that every benchmark has."""
    parser.add_argument("--output", type=Path, metavar="DIRECTORY", help="keep tables and pictures there")


class Report:
    """Prints the head when it is made. `console` takes progress bars, `show` tables."""

    def __init__(self, name: str, text: str, output: Path | None = None) -> None:
        self.console = Console(width=max(140, Console().width))
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        self._name = name
        self._output = output
        self._tables: list[dict[str, Any]] = []
        self._head = {
            "command": " ".join([f"python -m {_module()}", *_without_output(sys.argv[1:])]),
            "commit": commit or "unknown",
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} processors, {_instructions()}",
            "python": f"Python {platform.python_version()}",
        }
        self.console.print(text.strip().splitlines()[0])
        self.console.print("  ".join(self._head.values()))

    def show(self, table: Table, picture: Picture | None = None) -> None:
        """Print a table, and keep it."""
        self.console.print(table)
        if self._output is None:
            return
        self._output.mkdir(parents=True, exist_ok=True)
        columns = [str(column.header) for column in table.columns]
        rows = list(zip(*(list(map(str, column.cells)) for column in table.columns), strict=True))
        suffix = f"-{len(self._tables) + 1}" if self._tables else ""
        self._tables.append({"title": str(table.title), "columns": columns, "rows": rows})
        kept = self._output / f"{self._name}.json"
        kept.write_text(json.dumps({**self._head, "tables": self._tables}, indent=1, ensure_ascii=False) + "\n")
        if picture is not None:
            drawn = self._output / f"{self._name}{suffix}.png"
            try:
                _draw(picture, str(table.title), columns, rows, drawn)
            except ImportError:
                self.console.print(f"{drawn.name} is not drawn: matplotlib comes with pip install -e '.[bench]'")


def _instructions() -> str:
    """Return the processor's instructions that compiled forwards use. A reader with another
    processor needs them to judge a table."""
    known = llvm.get_host_cpu_features()
    return " ".join(name for name in ("avx2", "avx512f", "avx512vnni", "avx512bf16") if known.get(name)) or "no AVX2"


def _module() -> str:
    """Return the name under which this process was started, because a benchmark may keep its
    results under another."""
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec is not None else sys.argv[0]


def _without_output(arguments: Sequence[str]) -> list[str]:
    if "--output" not in arguments:
        return list(arguments)
    at = arguments.index("--output")
    return [*arguments[:at], *arguments[at + 2 :]]


def _draw(picture: Picture, title: str, columns: list[str], rows: Sequence[Sequence[str]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    cells = [dict(zip(columns, row, strict=True)) for row in rows]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    if picture.bars:
        y = picture.ys[0]
        names = [f"{picture.by}={row[picture.by]}  {row[picture.x]}" if picture.by else row[picture.x] for row in cells]
        axes.barh(names[::-1], [_number(row[y]) for row in cells][::-1], color="#3b6ea5")
        axes.set_xlabel(y)
    else:
        for y in picture.ys:
            groups = sorted({row[picture.by] for row in cells}) if picture.by else [y]
            for group in groups:
                chosen = [row for row in cells if picture.by is None or row[picture.by] == group]
                xs, values = ([_number(row[column]) for row in chosen] for column in (picture.x, y))
                axes.plot(xs, values, marker="o", label=group)
        if picture.log:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(picture.x)
        axes.set_ylabel(picture.y_label)
        axes.legend()
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _number(text: str) -> float:
    return float(text.replace(",", ""))
