"""The commands page: every ``slipstream`` command with its arguments and options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from slipstream.cli.__main__ import app
from tools.reference.markdown import cell, generated, paragraph, table

_HEAD = """# Commands

`pip install slipstream-llm` brings the command `slipstream`. `slipstream COMMAND --help`, or `-h`,
prints the same as this page, and `slipstream --version` the version. The settings of the services
themselves are in [settings.md](settings.md). `slipstream up` is an older name of `slipstream serve`.
"""


def page() -> str:
    """Return the page."""
    parts = [generated("the typer commands"), _HEAD]
    for name, command in sorted(all_commands().items()):
        if not command.hidden:
            parts += _section(name, command)
    return "".join(parts)


def all_commands() -> dict[str, Any]:
    """Return every command by its words after ``slipstream``, such as "chat" and "session list"."""
    return dict(_within("", typer.main.get_command(app)))


def _within(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield f"{prefix}{name}", command
        if hasattr(command, "commands"):
            yield from _within(f"{prefix}{name} ", command)


def _section(name: str, command: Any) -> Iterator[str]:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if _is_listed_option(parameter)]
    words = [
        "slipstream",
        name,
        *(f"{_name(argument)}{'...' if argument.nargs < 0 else ''}" for argument in arguments),
        *(["[OPTIONS]"] if options else []),
    ]
    yield f"\n## slipstream {name}\n\n```text\n{' '.join(words)}\n```\n\n"
    for text in (command.help or "").split("\n\n"):
        yield paragraph(text) + "\n"
    if arguments:
        yield (table(["argument", "meaning"], ([f"`{_name(one)}`", cell(one.help or "")] for one in arguments)) + "\n")
    if options:
        yield table(["option", "default", "meaning"], map(_option, options))


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _is_listed_option(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and not parameter.hidden


def _option(option: Any) -> list[str]:
    default = option.default
    shown = "" if option.is_flag or default is None or default == "" or callable(default) else f"`{default}`"
    names = ", ".join([*option.opts, *option.secondary_opts])
    return [f"`{names}`", "required" if option.required else shown, cell(option.help or "")]
