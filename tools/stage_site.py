"""Copy the pages of the documentation, and the files that they link to, to where mkdocs reads them.

python tools/stage_site.py DIRECTORY

Pages keep their paths, so that the links that work in the repository work on the site too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_FOLDERS = ("docs", "deploy", "examples", "clients")
_LINK = re.compile(r"\]\((?P<target>[^)\s#]+)(#[^)\s]*)?\)")


def staged_files() -> list[Path]:
    """Return the tracked pages at the root and in the folders, and what they link to."""
    named = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in named.split()]
    pages = [page for page in paths if page.parent == ROOT or page.relative_to(ROOT).parts[0] in _FOLDERS]
    return sorted({*pages, *(target for page in pages for target in _targets(page))})


def _targets(page: Path) -> Iterator[Path]:
    for found in _LINK.finditer(page.read_text()):
        target = (page.parent / found["target"]).resolve()
        if target.is_file() and target.is_relative_to(ROOT):
            yield target


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    directory = Path(arguments[0])
    shutil.rmtree(directory, ignore_errors=True)
    for path in staged_files():
        there = directory / path.relative_to(ROOT)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, there)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
