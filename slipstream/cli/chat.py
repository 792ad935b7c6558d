"""The chat on a terminal, or line by line where there is none."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console

from slipstream.client import Client, PeerError, Result, Session


def converse(client: Client, options: dict[str, Any]) -> None:
    """Send what the user types, print what the model says, and after each answer one line of statistics.

    Ends at the end of input. In a terminal Ctrl-C ends the running answer, and at the prompt the chat. A server that is lost is
    called again; the answer goes on where it was. PeerError if the session cannot be opened or the server has never been there.
    """
    interactive = sys.stdin.isatty()
    console = Console(highlight=False)
    with client.chat(**options) as chat:
        if interactive:
            console.print(f"session {chat.session_id}; an empty line or Ctrl-D ends the chat", style="dim")
        while (content := _read(console, interactive)) is not None:
            _answer(chat, content, console, interactive)


def _read(console: Console, interactive: bool) -> str | None:
    if not interactive:
        for line in sys.stdin:
            if line.strip():
                return line.strip()
        return None
    try:
        return console.input("[bold cyan]> [/]").strip() or None
    except (EOFError, KeyboardInterrupt):
        return None


def _answer(chat: Session, content: str, console: Console, interactive: bool) -> None:
    reply = chat.send(content)
    try:
        for piece in reply:
            console.print(piece, end="", markup=False, soft_wrap=True)
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


def statistics_line(result: Result) -> str:
    """One line: tokens, tokens/s, time to first token, acceptance, mean acceptance length."""
    return (
        f"[{result.generated_token_count} tokens, {result.tokens_per_second:.0f} tokens/s, "
        f"first token {result.time_to_first_token * 1e3:.0f} ms, acceptance {result.acceptance_rate:.0%}, "
        f"mean acceptance length {result.mean_acceptance_length:.2f}]"
    )
