"""Marked tokens: the same characters as without, told apart with and without colours, and
counted."""

from __future__ import annotations

import io
import itertools
import re

import pytest
from rich.console import Console
from rich.style import Style

from slipstream.cli.show_rounds import ORIGINS, RoundsShown, legend, say
from slipstream.client import Delta

TEXT = "a\tb :smile: [bold]c[/bold], and so on past the end of a line\r\n漢字 \x1b[2K 😀\n\nend  "
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def console_of(terminal: bool, **options: object) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    options = {"color_system": "standard" if terminal else None, **options}
    return Console(file=file, force_terminal=terminal, width=20, highlight=False, **options), file


def deltas(size: int = 5) -> list[Delta]:
    """TEXT in deltas of so many characters, a token each, all origins in turn."""
    origins = itertools.cycle(ORIGINS)
    found = []
    for start in range(0, len(TEXT), size):
        part = TEXT[start : start + size]
        found.append(
            Delta(
                part,
                tuple(range(len(part))),
                token_origins=tuple(next(origins) for _ in part),
                token_text_byte_counts=tuple(len(character.encode()) for character in part),
            )
        )
    return found


def shown(terminal: bool, several: list[Delta]) -> tuple[str, str]:
    """What is printed, and what goes aside."""
    console, file = console_of(terminal)
    aside, aside_file = console_of(False)
    rounds = RoundsShown(console, aside)
    for delta in several:
        rounds.say(delta)
    printed = file.getvalue()
    rounds.close()
    return printed, file.getvalue()[len(printed) :] + aside_file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("size", [1, 5, len(TEXT)])
def test_the_text_is_the_same_characters_with_marks_and_without(terminal: bool, size: int) -> None:
    console, file = console_of(terminal)
    for delta in deltas(size):
        say(console, delta.text)
    assert file.getvalue() == TEXT
    printed, _ = shown(terminal, deltas(size))
    assert ESCAPES.sub("", printed) == TEXT
    assert ("\x1b[" in printed.replace("\x1b[2K", "")) is terminal
    assert not re.search(r"\x1b\[[0-9;]*m[\r\n]+\x1b\[0m", printed), "a line's end is marked"


def test_no_two_origins_look_alike_without_colours() -> None:
    cues = [(style.bold, style.underline, style.reverse, style.italic) for _, style in ORIGINS.values()]
    assert len(set(cues)) == len(ORIGINS)
    assert len({style.color for _, style in ORIGINS.values()}) == len(ORIGINS)
    console, file = console_of(True, no_color=True)
    rounds = RoundsShown(console, console)
    for origin in ORIGINS:
        rounds.say(Delta("x", (1,), token_origins=(origin,), token_text_byte_counts=(1,)))
    marks = file.getvalue()
    assert marks == "\x1b[4mx\x1b[0m\x1b[1;4mx\x1b[0m\x1b[4;7mx\x1b[0m\x1b[7mx\x1b[0m\x1b[1mx\x1b[0mx"


def test_every_origin_is_counted_and_explained() -> None:
    _, counted = shown(False, [*deltas(), Delta("", (1, 2), token_origins=("draft", ""))])
    numbers = [int(number) for number in re.findall(r"\d+", counted)]
    assert re.sub(r"\d+", "N", counted) == "[N draft, N n-gram, N heads, N recovered, N bonus, N plain]\n"
    assert sum(numbers) == len(TEXT) + 1
    assert numbers[0] == len(TEXT[:: len(ORIGINS)]) + 1
    assert all(name in legend().plain for name, _ in ORIGINS.values())
    assert len(legend()) <= 80


def test_a_server_that_says_nothing_of_origins_is_told_and_an_answer_without_tokens_is_not() -> None:
    printed, counted = shown(True, [Delta("old and plain", (1, 2, 3))])
    assert printed == "old and plain"
    assert "does not say" in counted
    assert shown(True, [Delta("only the end's text")]) == ("only the end's text", "")


def test_a_style_is_made_of_what_terminals_can_do() -> None:
    assert all(not (style.italic or style.blink or style.strike) for _, style in ORIGINS.values())
    assert ORIGINS["plain"][1] == Style()
