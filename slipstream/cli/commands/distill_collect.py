"""``slipstream distill collect``: a target's answers to a file of prompts, as training data."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from slipstream.cli.answering import Answered, Asking, answers, listed
from slipstream.cli.commands.options import Device, Dtype
from slipstream.cli.ending import fail, progress, refusals
from slipstream.cli.local import PairSettings, free_address
from slipstream.cli.prompt_lines import Prompt, read_prompts
from slipstream.cli.reaching import Server, with_server
from slipstream.cli.sampling_options import sampling_of
from slipstream.cli.serving import serving
from slipstream.client import Client
from slipstream.errors import SlipstreamError
from slipstream.extras import require
from slipstream.home import expanded
from slipstream.reasons import Reason
from slipstream.v1 import orchestrator_pb2

if TYPE_CHECKING:
    from slipstream.distilling.collected_answers import CollectedAnswers

_TOLD_SECONDS = 30.0
"""Seconds between two lines of progress where standard error is no terminal."""
_STOPPED = re.compile(r"^slipstream_collecting(?:\{[^}]*\})? 0(?:\.0)?$", re.M)
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens pages of this machine without the proxy that the environment may name."""


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
    temperature: Annotated[
        float | None, typer.Option(help="give that of your traffic: 0 is greedy; default: the model's own")
    ] = None,
    sampling: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER", help="another sampling field of your traffic, as top_p=0.9; may be repeated"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="the prompt in line n has the seed SEED + n")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="prompts that are answered at a time")] = 8,
    mib: Annotated[int, typer.Option(min=16, help="most MiB that are kept, the oldest go first")] = 16384,
) -> None:
    """Let a target answer a file of prompts, and keep what slipstream distill learns from.

    slipstream distill collect --prompts prompts.jsonl --target models/target --out collected

    Run the same command again to go on where it ended.

    Without --target the server at --address answers all prompts, and its verifier keeps what it was
    told to:
    slipstream serve MODEL --collect DIR --collect-text --collect-share 1
    """
    if bool(target) != bool(out):
        fail(
            "--target and --out go together: without them, the server at --address answers, and collects where it is told to"
        )
    with refusals(""):
        asking = Asking(max_tokens, sampling_of(sampling or (), temperature), seed, concurrency)
        found = read_prompts("--prompts", prompts)
    if out is None:
        with refusals(server.address), server.client() as client:
            _tell_share(client.server_info().target)
            failed = _ask(client, found, asking)
        _refuse_failed(failed)
        return
    require("slipstream", "compiled", "orchestrator")
    flags = ["--collect", str(expanded(out)), "--collect-text", "--collect-share", "1", "--collect-mib", str(mib)]
    pair = PairSettings(target=target, draft=draft, device=device, dtype=dtype, target_flags=flags)
    said = {
        "target": target,
        "prompts": str(prompts),
        "max_tokens": max_tokens,
        "sampling": asking.sampling,
        "seed": seed,
    }
    _collect(found, asking, expanded(out), pair, said)


def _collect(
    found: Sequence[Prompt], asking: Asking, out: Path, pair: PairSettings, said: Mapping[str, object]
) -> None:
    """Let services that are started here answer what the folder does not have yet. ``said``: what
    the folder keeps about how it was asked for."""
    from slipstream.distilling.collected_answers import CollectedAnswers  # it needs numpy

    with refusals(""):
        collected = CollectedAnswers(out)
    keys = {prompt: asking.key(pair.target, prompt) for prompt in found}
    left = [prompt for prompt in found if not collected.has(keys[prompt])]
    if len(left) < len(found):
        progress.print(f"{len(found) - len(left)} of {len(found)} prompts were answered before", highlight=False)
    if not left:
        return
    metrics = free_address()
    pair = replace(pair, target_flags=[*pair.target_flags, "--metrics-address", metrics])

    def note(answered: Answered) -> None:
        collected.expect(keys[answered.prompt], answered.prompt_token_count, answered.token_ids)

    def look() -> None:
        _refuse_stopped(metrics)
        collected.look()

    with ExitStack() as stopped, serving(pair) as services:
        stopped.callback(_tell_collected, collected, keys.values(), out)
        with refusals(services.orchestrator_address), Client(services.orchestrator_address) as client:
            collected.note_asked(said)
            failed = _ask(client, left, asking, note, look)
    _refuse_failed(failed, *_losses(collected, {prompt.line: keys[prompt] for prompt in found}, failed))


def _ask(
    client: Client,
    left: Sequence[Prompt],
    asking: Asking,
    note: Callable[[Answered], None] = lambda _: None,
    look: Callable[[], None] = lambda: None,
) -> list[int]:
    """Let the prompts be answered, with progress on standard error. Return the lines of those that
    were not."""
    failed: list[int] = []
    tokens, said = 0, time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=progress, transient=True) as bar:
        task = bar.add_task("prompts", total=len(left))
        for answered in answers(client, left, asking, look):
            tokens += len(answered.token_ids)
            if answered.error:
                failed.append(answered.prompt.line)
                progress.print(
                    f"line {answered.prompt.line}: {answered.error}", style="red", markup=False, highlight=False
                )
            else:
                note(answered)
            bar.advance(task)
            if not progress.is_terminal and time.monotonic() >= said + _TOLD_SECONDS:
                said = time.monotonic()
                progress.print(f"{bar.tasks[0].completed:g} of {len(left)} prompts are done", highlight=False)
    typer.echo(f"answered {len(left) - len(failed)} of {len(left)} prompts with {tokens} tokens")
    return failed


def _tell_collected(collected: CollectedAnswers, keys: Collection[str], out: Path) -> None:
    """Say how many answers are in the folder, once the verifier has written what it had."""
    with refusals(""):
        collected.look()
    count = sum(map(collected.has, keys))
    progress.print(f"the answers to {count} of {len(keys)} prompts are in {out}", soft_wrap=True, highlight=False)


def _tell_share(target: orchestrator_pb2.Model) -> None:
    """Exit if a server's verifier collects nothing, and say so if it collects a part."""
    if not target.HasField("collect_share") or target.collect_share == 1:
        return
    if not target.collect_share:
        fail("the server's verifier collects nothing: start it with --collect DIR --collect-text --collect-share 1")
    progress.print(
        f"the verifier collects a share of {target.collect_share:g} of the answers: --collect-share 1 keeps all",
        highlight=False,
    )


def _losses(collected: CollectedAnswers, keys: Mapping[int, str], failed: Sequence[int]) -> Iterator[str]:
    """Yield what became of answers that are not in the folder, by their lines."""
    absent = [line for line, key in keys.items() if line not in failed and not collected.has(key)]
    pushed = absent if collected.missed else [line for line in absent if collected.had(keys[line])]
    if pushed:
        yield f"newer answers have pushed out those to lines {listed(pushed)}: give more --mib"
    if unwritten := [line for line in absent if line not in {*pushed}]:
        yield (
            f"the verifier has not written the answers to lines {listed(unwritten)}: they came faster than it could, "
            "or its disk is full; a lower --concurrency helps"
        )


def _refuse_failed(failed: Sequence[int], *losses: str) -> None:
    """Exit with status 1 if prompts were not answered, or if answers were lost."""
    faults = [*([f"no answer to lines {listed(failed)}: see above"] if failed else []), *losses]
    if faults:
        fail(f"{'; '.join(faults)}. Run the command again to ask them again")


def _refuse_stopped(metrics: str) -> None:
    """CollectingStoppedError if the verifier has ended, or has stopped collecting."""
    try:
        with _DIRECT.open(f"http://{metrics}/metrics", timeout=30) as page:
            shown = page.read().decode()
    except (OSError, HTTPException) as error:
        raise CollectingStoppedError(
            f"the verifier has ended, or does not answer: {getattr(error, 'reason', error)}. Run the command again to go on"
        ) from error
    if _STOPPED.search(shown):
        raise CollectingStoppedError(
            "the verifier has stopped collecting: is the disk of --out full? Make room, and run the command again"
        )
