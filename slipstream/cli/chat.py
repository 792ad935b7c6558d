"""The chat on a terminal, or line by line where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from slipstream.cli.show_rounds import RoundsShown, legend, say
from slipstream.cli.terminal import NotTextError, line_text
from slipstream.client import Client, PeerError, Reply, Result


def converse(
    client: Client, options: dict[str, Any], *, shows_rounds: bool = False, prediction: str | None = None
) -> None:
    """Send what the user types, print what the model says, and after each answer one line of
    statistics.

    Ends at the end of input. In a terminal Ctrl-C ends the running answer, and at the prompt the
    chat. A server that is lost is called again; the answer goes on where it was. PeerError if the
    session cannot be opened or the server has never been there, NotTextError if a line that comes
    from no terminal is not text. With ``shows_rounds`` each token shows how it came about, and
    their counts follow the statistics; the settings must ask for origins. Each message is sent with
    the ``prediction``.
    """
    interactive = sys.stdin is not None and sys.stdin.isatty()
    console = Console(highlight=False)
    if shows_rounds and console.is_terminal:
        console.print(legend(), soft_wrap=True)
    with client.chat(**options) as chat:
        if interactive:
            console.print(f"session {chat.session_id}; an empty line or Ctrl-D ends the chat", style="dim")
        for content in _typed(console) if interactive else _piped():
            rounds = RoundsShown(console, Console(stderr=True)) if shows_rounds else None
            _answer(chat.send(content, prediction=prediction), console, interactive, rounds)
            if rounds is not None:
                rounds.close()


def _piped() -> Iterator[str]:
    for number, line in enumerate(sys.stdin or (), 1):
        try:
            content = line_text(line, number).strip()
        except NotTextError as error:
            raise NotTextError(f"{error}; nothing from there on is sent") from error
        if content:
            yield content


def _typed(console: Console) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        try:
            typed = console.input("[bold cyan]> [/]").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if not typed:
            return
        try:
            content = line_text(typed, number)
        except NotTextError as error:
            console.print(f"{error}; it is not sent", style="red", markup=False)
        else:
            yield content


def _answer(reply: Reply, console: Console, interactive: bool, rounds: RoundsShown | None) -> None:
    try:
        _say(reply, console, rounds)
    except KeyboardInterrupt:
        if not interactive:
            raise
        console.print(f"\n[cancelled after {len(reply.result.token_ids)} tokens]", style="dim", markup=False)
        return
    except PeerError as error:
        console.print(f"[{error.reason}] {error}", style="red", markup=False)
        return
    console.print()
    console.print(statistics_line(reply.result), style="dim", markup=False, soft_wrap=True)


def _say(reply: Reply, console: Console, rounds: RoundsShown | None) -> None:
    for delta in reply.deltas():
        if rounds is None:
            say(console, delta.text)
        else:
            rounds.say(delta)


def statistics_line(result: Result) -> str:
    """One line: tokens, tokens/s, time to first token, acceptance, mean acceptance length, and the
    proposer that was asked for if there is none."""
    absent = f", the server has no {result.absent_proposer}" if result.absent_proposer else ""
    return (
        f"[{result.generated_token_count} tokens, {result.tokens_per_second:.0f} tokens/s, "
        f"first token {result.time_to_first_token * 1e3:.0f} ms, acceptance {result.acceptance_rate:.0%}, "
        f"mean acceptance length {result.mean_acceptance_length:.2f}{absent}]"
    )
