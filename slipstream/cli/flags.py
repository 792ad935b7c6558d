"""Flags of ``slipstream serve`` as rows of a table: each is ours, accepted without effect, or
refused."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any

import typer

Given = Mapping[str, Any]
"""The flags of a command line, by keyword: a text, None where a flag is left out, and True or False
of a switch."""


class Fate(StrEnum):
    """Effect of a flag."""

    OURS = "ours"
    ACCEPTED = "accepted"
    """The flag would change nothing here, and a line says so."""
    REFUSED = "refused"
    """The command ends, and a line says what would be right."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, and what it means here."""

    name: str
    says: str
    """Meaning; or why it has no effect; or why it is refused, and what would be right."""
    takes: str = "TEXT"
    """Placeholder of its value. Empty: a switch."""
    fate: Fate = Fate.OURS
    default: str | None = None
    group: str | None = None
    """Heading of its group in ``--help``."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Setting that takes its value unchanged, by service."""
    harmless: tuple[str, ...] = ()
    """Values of a refused flag that ask for nothing."""
    short: str | None = None
    """Second name, such as ``-tp``."""

    @property
    def keyword(self) -> str:
        """Return its name as a Python name."""
        return self.name.lstrip("-").replace("-", "_")

    def parameter(self) -> inspect.Parameter:
        """Return the parameter of a typer command that takes it. ``--help`` lists only ours."""
        option = typer.Option(
            self.name,
            *([self.short] if self.short else []),
            help=self.says,
            metavar=self.takes or None,
            hidden=self.fate is not Fate.OURS,
            rich_help_panel=self.group,
        )
        kind: Any = str | None if self.takes else bool
        default = self.default if self.takes else False
        return inspect.Parameter(
            self.keyword, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
        )


def takes(flags: Sequence[Flag]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these flags in the place of its argument ``given``."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "given"]

        @wraps(command)
        def run(**arguments: Any) -> None:
            given = {flag.keyword: arguments.pop(flag.keyword) for flag in flags}
            command(given=given, **arguments)

        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *(flag.parameter() for flag in flags)]
        )
        return run

    return wrap


def flags_of(service: str, flags: Iterable[Flag], given: Given) -> list[str]:
    """Return the flags of a service that what was given asks for."""
    passed = []
    for flag in flags:
        if (setting := flag.settings.get(service)) and (value := given[flag.keyword]):
            passed += [f"--{setting}"] if value is True else [f"--{setting}", value]
    return passed


def refusal(flags: Iterable[Flag], given: Given) -> str:
    """Return why the first flag that is refused is; empty if none is."""
    for flag in _given(flags, given, Fate.REFUSED):
        if given[flag.keyword] not in flag.harmless:
            return f"{_shown(flag, given)}: {flag.says}"
    return ""


def remarks(flags: Iterable[Flag], given: Given) -> list[str]:
    """Return a line for each flag that is accepted without effect."""
    return [f"{_shown(flag, given)} has no effect: {flag.says}" for flag in _given(flags, given, Fate.ACCEPTED)]


def in_flags_words(text: str, flags: Iterable[Flag]) -> str:
    """Return a service's last words with our flags for its own. It begins them with its name."""
    service = text.partition(":")[0]
    for flag in flags:
        if setting := flag.settings.get(service):
            text = re.sub(rf"--{setting}(?![\w-])", flag.name, text)
    return text


def _given(flags: Iterable[Flag], given: Given, fate: Fate) -> Iterator[Flag]:
    return (flag for flag in flags if flag.fate is fate and given[flag.keyword] not in (None, False))


def _shown(flag: Flag, given: Given) -> str:
    return f"{flag.name} {given[flag.keyword]}" if flag.takes else flag.name
