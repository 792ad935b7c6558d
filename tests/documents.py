"""Read the Markdown pages that readers start from: their code blocks, links and anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

SHOWN = [ROOT / "README.md", ROOT / "docs" / "quickstart.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
"""The README and the guides: every block of theirs is run or checked."""

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(path for folder in ("docs", "deploy", "examples") for path in (ROOT / folder).rglob("*.md")),
    *sorted((ROOT / "clients").glob("*/README.md")),
]
"""All pages whose links are checked."""

SUITES = {"langchain_openai": "langchain", "llama_index": "llamaindex"}
"""Environments of Python packages that no test of `make test` installs, by what a block imports."""

_FENCE = re.compile(r"^```(?P<language>[a-z]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code: its page, the line of its fence, its language and its code."""

    page: Path
    line: int
    language: str
    code: str

    @property
    def place(self) -> str:
        """Where it stands, to name a test."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield a page's code blocks."""
    text = page.read_text()
    for found in _FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["code"])


def shown_blocks(*languages: str) -> list[Block]:
    """Return the blocks in some languages of the README and the guides."""
    return [block for page in SHOWN for block in blocks(page) if block.language in languages]


def suite_of(block: Block) -> str | None:
    """Return the environment below .venv that a Python block needs, None if `.venv` itself has all
    that it imports."""
    return next((suite for name, suite in SUITES.items() if f"from {name}" in block.code), None)


def links(page: Path) -> Iterator[str]:
    """Yield the targets of a page's links and pictures, but for those to other hosts."""
    for found in _LINK.finditer(_FENCE.sub("", page.read_text())):
        if not re.match(r"[a-z]+:", found["target"]):
            yield found["target"]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    made: dict[str, int] = {}
    found = set()
    for heading in _HEADING.finditer(_FENCE.sub("", page.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["text"]).lower()
        slug = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
        made[slug] = made.get(slug, 0) + 1
        found.add(slug if made[slug] == 1 else f"{slug}-{made[slug] - 1}")
    return found
