"""Write the generated pages of docs/, or with ``--check`` say which of them are stale.

python tools/make_reference.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tools.reference import (
    alerts,
    api,
    benchmarks,
    commands,
    decisions,
    errors,
    http,
    metrics,
    pairs,
    serve_flags,
    settings,
)

DOCS = Path(__file__).parents[1] / "docs"

PAGES: dict[str, Callable[[], str]] = {
    "reference/settings.md": settings.page,
    "reference/errors.md": errors.page,
    "reference/commands.md": commands.page,
    "reference/metrics.md": metrics.page,
    "reference/alerts.md": alerts.page,
    "reference/api.md": api.page,
    "reference/http.md": http.page,
    "reference/serve-flags.md": serve_flags.page,
    "reference/pairs.md": pairs.page,
    "decisions/README.md": decisions.page,
    "benchmarks/README.md": partial(benchmarks.page, DOCS / "benchmarks" / "README.md"),
    "guides/collect.md": partial(benchmarks.page, DOCS / "guides" / "collect.md"),
    "guides/distill.md": partial(benchmarks.page, DOCS / "guides" / "distill.md"),
    "guides/eagle3.md": partial(benchmarks.page, DOCS / "guides" / "eagle3.md"),
    "guides/gguf.md": partial(benchmarks.page, DOCS / "guides" / "gguf.md"),
}
"""Function that makes each page, by the page's path under docs/."""


def stale_pages() -> list[str]:
    """Return the paths of the pages that differ from what the code says."""
    return [path for path, page in PAGES.items() if not _is_current(DOCS / path, page())]


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    stale = stale_pages()
    if "--check" in arguments:
        for path in stale:
            print(f"docs/{path} is stale: run python tools/make_reference.py", file=sys.stderr)
        return bool(stale)
    for path in stale:
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(PAGES[path]())
        print(f"wrote docs/{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
