"""``slipstream distill collect``: a target's answers to a file of prompts, as training data."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from slipstream.cli.answering import Asking, Journal, answers, listed
from slipstream.cli.commands.options import Device, Dtype
from slipstream.cli.ending import fail, progress, refusals
from slipstream.cli.local import PairSettings, free_address
from slipstream.cli.prompt_lines import Prompt, read_prompts
from slipstream.cli.reaching import Server, with_server
from slipstream.cli.serving import serving
from slipstream.client import Client
from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason

_JOURNAL = ".answered"
_TOLD_SECONDS = 30.0
"""Seconds between two lines of progress where standard error is no terminal."""
_SAMPLE = re.compile(r"^slipstream_(collecting|collect_dropped_rows_total)(?:\{[^}]*\})? (\S+)$", re.M)


class CollectingStoppedError(SlipstreamError):
    """The verifier does not collect any more."""

    reason = Reason.SERVICE_FAILED


@with_server
def collect(
    server: Server,
    prompts: Annotated[
        Path,
        typer.Option(metavar="FILE", help='JSONL of {"messages": [...]} or {"prompt": "..."}, or a message a line'),
    ],
    target: Annotated[
        str, typer.Option(metavar="MODEL", help="target to start here; default: the server at --address answers")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="private folder for what is collected, with --target")
    ] = None,
    draft: Annotated[str, typer.Option(metavar="MODEL", help="draft to start too: answers may come sooner")] = "",
    device: Device = "cpu",
    dtype: Dtype = "bfloat16",
    max_tokens: Annotated[int, typer.Option(min=1, help="most tokens of an answer")] = 512,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; default: the model's own")] = None,
    seed: Annotated[int, typer.Option(min=0, help="the prompt in line n has the seed SEED + n")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="prompts that are answered at a time")] = 8,
    mib: Annotated[int, typer.Option(min=16, help="most MiB that are kept, the oldest go first")] = 16384,
) -> None:
    """Let a target answer a file of prompts, and keep what slipstream distill learns from.

    slipstream distill collect --prompts prompts.jsonl --target models/target --out collected

    Run the same command again to go on where it ended.

    Without --target the server at --address answers, and its verifier keeps what it was told to:
    slipstream serve MODEL --collect DIR --collect-text --collect-share 1
    """
    if bool(target) != bool(out):
        fail(
            "--target and --out go together: without them, the server at --address answers, and collects where it is told to"
        )
    asking = Asking(max_tokens, temperature, seed, concurrency)
    with refusals(""):
        found = read_prompts("--prompts", prompts)
        journal = Journal(None if out is None else out.expanduser() / _JOURNAL, target, asking)
    left = [prompt for prompt in found if not journal.knows(prompt)]
    if len(left) < len(found):
        progress.print(f"{len(found) - len(left)} of {len(found)} prompts were answered before", highlight=False)
    if out is None:
        with refusals(server.address), server.client() as client:
            _ask(client, left, asking, journal)
        return
    if not left:
        return
    metrics = free_address()
    flags = ["--collect", str(out.expanduser()), "--collect-text", "--collect-share", "1", "--collect-mib", str(mib)]
    pair = PairSettings(
        target=target,
        draft=draft,
        device=device,
        dtype=dtype,
        target_flags=[*flags, "--metrics-address", metrics],
    )
    with serving(pair) as services:
        with refusals(services.orchestrator_address), Client(services.orchestrator_address) as client:
            _ask(client, left, asking, journal, lambda: _refuse_stopped(metrics))
        dropped = _read(metrics).get("collect_dropped_rows_total", 0)
    if dropped:
        progress.print(
            f"{dropped:g} positions were dropped: they came faster than they could be written", highlight=False
        )


def _ask(
    client: Client, left: Sequence[Prompt], asking: Asking, journal: Journal, look: Callable[[], None] = lambda: None
) -> None:
    """Let the prompts be answered, with progress on standard error. Exits with status 1 if some
    were not."""
    failed: list[int] = []
    tokens, said = 0, time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=progress, transient=True) as bar:
        task = bar.add_task("prompts", total=len(left))
        for answered in answers(client, left, asking, look):
            tokens += answered.token_count
            if answered.error:
                failed.append(answered.prompt.line)
                progress.print(
                    f"line {answered.prompt.line}: {answered.error}", style="red", markup=False, highlight=False
                )
            else:
                journal.note(answered.prompt)
            bar.advance(task)
            if not progress.is_terminal and time.monotonic() >= said + _TOLD_SECONDS:
                said = time.monotonic()
                progress.print(f"{bar.tasks[0].completed:g} of {len(left)} prompts are done", highlight=False)
    typer.echo(f"answered {len(left) - len(failed)} of {len(left)} prompts with {tokens} tokens")
    if failed:
        fail(f"no answer to lines {listed(failed)}: see above. Run the command again to ask them again")


def _refuse_stopped(metrics: str) -> None:
    if _read(metrics).get("collecting") == 0:
        raise CollectingStoppedError(
            "the verifier has stopped collecting, and its last answers may be missing: is the disk of --out full?"
        )


def _read(metrics: str) -> dict[str, float]:
    """Return a verifier's metrics of collecting."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as page:
        return {name: float(value) for name, value in _SAMPLE.findall(page.read().decode())}
