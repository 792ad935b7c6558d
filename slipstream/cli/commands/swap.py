"""``slipstream swap``: a new draft in the place of the old one, under traffic."""

from __future__ import annotations

import json
import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from slipstream.cli.ending import fail, progress, refusals
from slipstream.cli.listen_addresses import refuse_busy
from slipstream.cli.local import free_address, is_small
from slipstream.cli.model_arguments import refuse_wrong_model
from slipstream.cli.output import output
from slipstream.cli.reaching import Server, with_server
from slipstream.cli.service_process import START_SECONDS
from slipstream.cli.swapping.comparison import Verdict
from slipstream.cli.swapping.draft_process import DraftProcess
from slipstream.cli.swapping.goal import Finding, Goal
from slipstream.cli.swapping.new_draft import NewDraft
from slipstream.cli.swapping.operators import Operators
from slipstream.cli.swapping.replacement import Replacement
from slipstream.cli.swapping.showing import as_dict, lines_after, table
from slipstream.cli.swapping.trial import Trial
from slipstream.extras import require
from slipstream.rpc.status import PeerError
from slipstream.transport.addresses import stays_here

_LINE_SECONDS = 10.0
"""Seconds between two lines of progress where there is no terminal."""


@with_server
def swap(
    server: Server,
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- FLAG...]", help="flags of the draft service that is started")
    ] = None,
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="new draft: a directory, a .gguf file or a hub id; a service is started"),
    ] = "",
    running: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="new draft: a service that runs already, as the orchestrator reaches it"
        ),
    ] = "",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="address of the started service; default: a free port on loopback")
    ] = "",
    device: Annotated[str, typer.Option(help="its torch device: cpu, cuda, cuda:1")] = "cpu",
    dtype: Annotated[str, typer.Option(help="its type: bfloat16 or float32")] = "bfloat16",
    share: Annotated[float, typer.Option(min=0.01, max=1.0, help="share of the sessions that try it")] = 0.2,
    turns: Annotated[int, typer.Option(min=8, help="turns with the new draft after which it is judged")] = 100,
    tokens: Annotated[int | None, typer.Option(min=1, help="or tokens, if that comes first")] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="after which it is judged by what there is")] = 60.0,
    replaces: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="old draft that it would replace; may be repeated; default: all"),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="keep it if the figures decide nothing")] = False,
    ask: Annotated[bool, typer.Option("--ask", help="ask if the figures decide nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Replace an orchestrator's draft under traffic: try a new one with a share of the sessions,
    compare, and keep the better.

    slipstream swap --model drafts/new --share 0.2

    A service that runs already: slipstream swap --running draft-b:50053

    No text changes. Better beyond noise: the new draft gets all sessions, and
    the old one is removed. Worse or failing: the new one is removed. Undecided: it is removed too,
    unless --keep or --ask says otherwise. Exit status 0: it was kept; 3: it was not.

    The orchestrator needs --anyone-operates, or a token of a principal with operator = true.
    """
    if bool(model) == bool(running):
        fail("give the new draft by --model, to start it, or by --running, if it runs already")
    if keep and ask:
        fail("give --keep or --ask, not both")
    if ask and not sys.stdin.isatty():
        fail("--ask needs a terminal to ask on: give --keep, or neither")
    if running and (listen or flags):
        fail("--listen and flags after -- are for a service that swap starts: leave them out with --running")
    with refusals(server.address):
        if model:
            _check_start(server, model, listen)
        operators = Operators(server, f"swap-{secrets.token_hex(8)}")
        operators.list()  # before a model is loaded
    goal = Goal(share, turns, tokens, 60 * minutes, START_SECONDS)
    process = _started(model, listen, device, dtype, flags or []) if model else None
    address = process.address if process else running
    draft = NewDraft(operators, address, lambda: _last_words(process))
    trial = Trial(draft, goal, replaces or ())
    try:
        if not _is_kept_after(trial, process, server, keep=keep, ask=ask, as_json=as_json):
            raise typer.Exit(3)
    finally:
        operators.close()


def _is_kept_after(
    trial: Trial, process: DraftProcess | None, server: Server, *, keep: bool, ask: bool, as_json: bool
) -> bool:
    """Run the trial, leave the new draft in place of the old ones or nothing of it, and report.
    Return whether it was kept."""
    kept: Replacement | None = None
    try:
        with refusals(server.address):
            with _shown(trial.draft):
                finding = trial.find()
            if _decide(trial, finding, keep=keep, ask=ask):
                replacement = Replacement(trial.draft, trial.old_addresses)
                replacement.keep(trial.goal.share)
                if process is not None:
                    process.keep()
                kept = replacement
                kept.remove_old()
    except BaseException:
        if kept is not None:
            _report(trial, finding, process, kept, as_json=as_json)
        raise
    finally:
        if kept is None:
            _withdraw(trial.draft, process)
    _report(trial, finding, process, kept, as_json=as_json)
    return kept is not None


def _check_start(server: Server, model: str, listen: str) -> None:
    require("slipstream", "compiled")
    refuse_wrong_model("--model", model)
    if listen:
        refuse_busy({"--listen": listen})
    elif not stays_here(server.address):
        fail(
            f"the orchestrator at {server.address} may be on another machine, which cannot reach a draft on loopback: say "
            "with --listen HOST:PORT how it reaches this machine"
        )


def _started(model: str, listen: str, device: str, dtype: str, flags: list[str]) -> DraftProcess:
    threads = ["--threads", "1"] if device == "cpu" and is_small(model) and "--threads" not in flags else []
    own = ["--model", model, "--device", device, "--dtype", dtype, *threads, *flags]
    return DraftProcess(listen or free_address(), own)


def _last_words(process: DraftProcess | None) -> str | None:
    if process is None or process.process.poll() is None:
        return None
    return process.last_words()


@contextmanager
def _shown(draft: NewDraft) -> Iterator[None]:
    """Show how far a trial is: on a terminal in one line, else a line when it changes."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=progress, transient=True, disable=not progress.is_terminal) as bar:
        task = bar.add_task("starting")
        draft.report = lambda text: bar.update(task, description=text)
        if not progress.is_terminal:
            draft.report = _Lines().say
        yield


class _Lines:
    """Lines of progress for a log: each kind at once, and then every few seconds."""

    def __init__(self) -> None:
        self._kind, self._said = "", 0.0

    def say(self, text: str) -> None:
        kind, now = re.sub(r"\d+", "", text), time.monotonic()
        if kind != self._kind or now - self._said >= _LINE_SECONDS:
            self._kind, self._said = kind, now
            progress.print(text, markup=False, highlight=False, soft_wrap=True)


def _decide(trial: Trial, finding: Finding, *, keep: bool, ask: bool) -> bool:
    if finding.verdict is not Verdict.UNDECIDED:
        return finding.verdict is Verdict.BETTER
    if ask:
        output().print(table(finding))
        with trial.draft.renewed(trial.goal.share):
            return typer.confirm(f"undecided: {finding.why}. Keep the new draft?")
    return keep


def _withdraw(draft: NewDraft, process: DraftProcess | None) -> None:
    """Leave nothing of the new draft."""
    with suppress(PeerError):  # the trial ends with its lease
        draft.withdraw()
    if process is not None:
        process.stop()


def _report(
    trial: Trial, finding: Finding, process: DraftProcess | None, kept: Replacement | None, *, as_json: bool
) -> None:
    is_kept, draft, remaining = kept is not None, trial.draft, kept.remaining if kept is not None else {}
    if as_json:
        typer.echo(json.dumps(as_dict(finding, is_kept=is_kept, address=draft.address, unreached=draft.unreached)))
    else:
        console = output()
        if finding.new.turn_count or finding.old.turn_count:
            console.print(table(finding))
        console.print(f"{finding.verdict}: {finding.why}", markup=False, soft_wrap=True)
    removed = [address for address in trial.old_addresses if address not in remaining]
    drafts = [*trial.staying, draft.address]
    for line in lines_after(is_kept=is_kept, process=process, drafts=drafts, removed=removed):
        progress.print(line, markup=False, highlight=False, soft_wrap=True)
    for address, why in remaining.items():
        progress.print(f"the old draft at {address} serves on: {why}", style="yellow", markup=False, soft_wrap=True)
    for address, why in draft.unreached.items():
        progress.print(f"not reached: the process at {address}: {why}", style="yellow", markup=False, soft_wrap=True)
