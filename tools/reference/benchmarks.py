"""Pages with measured tables: the prose is written by hand, the tables come from the JSON files of
docs/benchmarks.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. After the name may follow the
columns to show, and after those one condition on the rows: ``network | T, tokens/s | T=0``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tools.reference.markdown import cell, paragraph, table
from tools.reference.payoff import payoff_table

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"

_TABLE = re.compile(r"(?P<head><!-- table: (?P<asked>[^>]+?) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def page(path: Path) -> str:
    """Return a page as it stands, with every table rendered again."""
    return _TABLE.sub(lambda found: found["head"] + _rendered(found["asked"]) + found["end"], path.read_text())


def _rendered(asked: str) -> str:
    name, columns, condition = (*(part.strip() for part in asked.split("|")), "", "")[:3]
    if name == "payoff":
        return payoff_table()
    kept: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    source = f"{kept['machine']}; commit {kept['commit']}, {kept['date']}; {kept.get('spread', 'spread not recorded')}."
    shown = (
        _table(one, [column.strip() for column in columns.split(",") if column], condition) for one in kept["tables"]
    )
    return paragraph(source) + "\n" + "\n".join(shown)


def _table(kept: dict[str, Any], columns: list[str], condition: str) -> str:
    rows = [dict(zip(kept["columns"], row, strict=True)) for row in kept["rows"]]
    if condition:
        column, _, value = condition.partition("=")
        rows = [row for row in rows if row[column] == value]
    shown = columns or kept["columns"]
    cells = ([cell(row[column]) for column in shown] for row in rows)
    return table([cell(column) for column in shown], cells, numeric=range(1, len(shown)))
