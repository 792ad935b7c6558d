"""``slipstream chat``: a conversation on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.cli.chat import converse
from slipstream.cli.commands.options import Device, Draft, DraftLength, Dtype, Target
from slipstream.cli.ending import progress, refusals
from slipstream.cli.local import PairSettings, free_address
from slipstream.cli.reaching import Server, with_server
from slipstream.cli.serving import serving
from slipstream.cli.terminal import argument_text, file_text
from slipstream.client import PeerError, Settings
from slipstream.extras import missing


@with_server
def chat(
    server: Server,
    local: Annotated[bool, typer.Option("--local", help="start the three services here first, on free ports")] = False,
    target: Target = "embedded",
    draft: Draft = "embedded",
    device: Device = "cpu",
    dtype: Dtype = "bfloat16",
    system: Annotated[str | None, typer.Option(help="system message")] = None,
    session: Annotated[str | None, typer.Option(help="id of a session to resume")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; default: the model's own")] = None,
    seed: Annotated[int | None, typer.Option(help="same seed, same text")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="most tokens an answer may have")] = None,
    draft_length: DraftLength = None,
    task: Annotated[
        str | None, typer.Option(help="tag by which the server counts acceptance; see slipstream drift")
    ] = None,
    do_not_collect: Annotated[
        bool,
        typer.Option("--do-not-collect", help="keep these messages out of what the operator collects to train drafts"),
    ] = False,
    prediction: Annotated[
        Path | None, typer.Option(help="UTF-8 file that the answers probably repeat in large part: they come sooner")
    ] = None,
    show_rounds: Annotated[
        bool,
        typer.Option("--show-rounds", help="mark each token by how it came about: accepted, recovered, bonus, plain"),
    ] = False,
) -> None:
    """Talk to the model. Where standard input is no terminal: one message a line, exit at its end.

    To see what the draft gets right while the answer comes: slipstream chat --local --show-rounds
    """
    settings = Settings(
        temperature=temperature,
        seed=seed,
        max_token_count=max_tokens,
        draft_length=draft_length,
        task=task,
        do_not_collect=do_not_collect or None,
        token_origins=show_rounds or None,
    )
    with refusals(server.address):
        session = None if session is None else argument_text(session, "--session")
        system = None if system is None else argument_text(system, "--system")
        predicted = None if prediction is None else file_text("--prediction", prediction)
    options: dict[str, Any] = {"session_id": session, "system": system, "settings": settings}
    if not local:
        _converse(server, options, show_rounds, predicted)
        return
    pair = PairSettings(target=target, draft=draft, device=device, dtype=dtype)
    with serving(pair, gateway="" if missing("gateway") else free_address()) as services:
        if services.gateway is not None:
            progress.print(f"the same in a browser: {services.gateway.url}/", highlight=False, soft_wrap=True)
        _converse(Server(services.orchestrator_address), options, show_rounds, predicted)


def _converse(server: Server, options: dict[str, Any], shows_rounds: bool, prediction: str | None) -> None:
    def lost(error: PeerError) -> None:
        progress.print("[the connection is lost; trying again]", style="dim", markup=False)

    with refusals(server.address), server.client(on_lost=lost) as client:
        converse(client, options, shows_rounds=shows_rounds, prediction=prediction)
