"""Check the words and the shape of the project's prose: docstrings, comments, Markdown, protos.

Checks all tracked files, or those under each PATH, and exits with 1 if it complains:

  python tools/check_english.py [PATH ...]
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
"""Columns of prose."""
MOST_WORDS = 40
"""Words of a sentence. The rule is fewer than 25; this bound finds the ones that a reader gets lost
in."""

BANNED = re.compile(r"\b(whoever|whomever|nobody|anybody|somebody|whatever|thereof|anew)\b", re.IGNORECASE)

FRAGMENTS = frozenset(
    """whether what who whose whom which where wherever how why whichever than that it its they them their this these
    those and but or else of as nothing none not likewise so then thus therefore hence else otherwise as also too
    ditto same another""".split()
)
"""First words of a docstring that needs the line above it, or says what a thing is not."""

_SKIPPED = (
    "slipstream/v1/",
    "slipstream/wire/v1/",
    "docs/history/",
    "docs/reference/",
    "orchestrator/rounds/",  # to be replaced
    "orchestrator/speculation/",
    "training/dialogues.py",  # its questions are data
    "CHANGELOG.md",
)
_URL = re.compile(r"https?://\S+|`[^`]*`")
_PARAGRAPHS = re.compile(r"\n\s*\n|\n\s*[-*|├└] ?")
_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z`\"'(])")


def main(paths: list[str]) -> int:
    """Print a line for each complaint, and return an exit status."""
    complaints = [line for path in _tracked(paths) for line in _complaints(path)]
    print("\n".join(complaints) or "the prose is in order")
    return bool(complaints)


def _tracked(paths: list[str]) -> Iterator[Path]:
    names = subprocess.run(["git", "ls-files", *paths], capture_output=True, text=True, check=True).stdout.split("\n")
    for name in names:
        if name.endswith((".py", ".md", ".proto")) and not name.startswith(_SKIPPED):
            yield Path(name)


def _complaints(path: Path) -> Iterator[str]:
    text = path.read_text()
    is_test = path.parts[0] in ("tests",)
    for number, line in enumerate(text.splitlines(), 1):
        found = BANNED.search(line)
        if found and path.name != "check_english.py":
            yield f"{path}:{number}: says {found.group()!r}: name the actor, or say it plainly"
    if path.suffix == ".md":
        yield from (f"{path}:{number}: {problem}" for number, problem in _markdown(text))
    elif path.suffix == ".proto":
        yield from (f"{path}:{number}: {problem}" for number, problem in _wide_comments(text))
    else:
        yield from (f"{path}:{number}: {problem}" for number, problem in _python(path, text, is_test))


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        is_prose = not is_code and not line.lstrip().startswith(("|", "[", "![", "<"))
        if is_prose and len(line) > WIDTH and " " in line[: WIDTH + 1].strip():
            yield number, f"{len(line)} columns: prose wraps at {WIDTH}"


def _wide_comments(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH and line.lstrip().startswith("//"):
            yield number, f"{len(line)} columns: prose wraps at {WIDTH}"


def _python(path: Path, text: str, is_test: bool) -> Iterator[tuple[int, str]]:
    with tokenize.open(path) as source:
        for token in tokenize.generate_tokens(source.readline):
            is_alone = token.line.lstrip().startswith("#")
            if token.type == tokenize.COMMENT and is_alone and len(token.line.rstrip()) > WIDTH:
                yield token.start[0], f"{len(token.line.rstrip())} columns: prose wraps at {WIDTH}"
    lines = text.splitlines()
    for node in _docstrings(ast.parse(text)):
        first = node.lineno
        last = node.end_lineno or first
        for number in range(first, last + 1):
            if len(lines[number - 1]) > WIDTH and not _URL.fullmatch(lines[number - 1].strip()):
                yield number, f"{len(lines[number - 1])} columns: prose wraps at {WIDTH}"
        assert isinstance(node.value, str)
        if not is_test:
            yield from ((first, problem) for problem in _shape(node.value))


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the docstrings of modules, classes and functions, and of assignments."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for one in body:
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.value


def _shape(text: str) -> Iterator[str]:
    words = text.split()
    if words and re.sub(r"\W", "", words[0]).lower() in FRAGMENTS:
        yield f"begins with {words[0]!r}: a docstring's first sentence stands alone, a verb or a noun phrase first"
    for paragraph in _PARAGRAPHS.split(text.split("::\n")[0]):
        for sentence in _END.split(" ".join(_URL.sub("X", paragraph).split())):
            if len(sentence.split()) > MOST_WORDS:
                yield f"a sentence of {len(sentence.split())} words: {sentence[:60]}..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
