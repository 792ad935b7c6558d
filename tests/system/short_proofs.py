"""Short proofs. A disturbance may meet nothing in one of them, so others follow."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from proving.__main__ import main

PROMPT_COUNT = 40
TOKEN_COUNT = 96
_MOST_PROOFS = 4


def flags_of(directory: Path, seed: int, *more: str) -> list[str]:
    said = ["--prompts", str(PROMPT_COUNT), "--tokens", str(TOKEN_COUNT), "--seed", str(seed), "--commit", "test"]
    return [*said, "--directory", str(directory), "--report", str(directory / "report.md"), *more]


def prove(directory: Path, seed: int, *more: str) -> tuple[int, str]:
    """A whole proof in this process: its status, and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main(flags_of(directory, seed, *more))
    return status, printed.getvalue()


def never_struck(directory: Path) -> set[str]:
    """Names of the disturbances that a proof's report says to have met nothing."""
    rows = [line.split(" | ") for line in (directory / "report.md").read_text().splitlines() if line.startswith("| ")]
    return {row[0].removeprefix("| ") for row in rows if row[3].startswith("NEVER")}


def assert_no_bit_differs(directory: Path, seed: int, status: int, output: str, *more: str) -> None:
    """Texts are equal, and each disturbance struck, in this proof or with another seed."""
    silent = never_struck(directory)
    assert_equal_texts(silent, status, output)
    for number in range(1, _MOST_PROOFS):
        if not silent:
            return
        again = directory / f"again-{number}"
        again.mkdir()
        status, output = prove(again, seed + number, *more)
        assert_equal_texts(never_struck(again), status, output)
        silent &= never_struck(again)
    assert not silent, f"never struck in {_MOST_PROOFS} proofs: {silent}"


def assert_equal_texts(silent: set[str], status: int, output: str) -> None:
    if not silent:
        assert status == 0, output
        assert f"{PROMPT_COUNT} prompts, {PROMPT_COUNT * TOKEN_COUNT:,} tokens: not one bit differs." in output
    else:  # and nothing else is said
        assert f"0 of {PROMPT_COUNT} prompts differ; never struck: " in output, output
