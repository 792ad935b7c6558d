"""``slipstream plan``: what a pair of models needs, and whether speculation pays there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from slipstream.cli.ending import fail, progress, refusals
from slipstream.cli.words import plural
from slipstream.errors import SlipstreamError
from slipstream.extras import require

if TYPE_CHECKING:
    from slipstream.planning.plan import Plan, Question
    from slipstream.planning.steps import PlannedModel

_MODEL = "folder, config.json, .gguf file, hub id in the cache, or a known name such as {}"
_MOST_NUMBERS = 20
_DTYPE = "format of its weights: bfloat16, float16, float32, fp8, int4, mxfp4, q8_0 or q4_k_m; default: as stored"


def plan(
    target: Annotated[str, typer.Option(metavar="MODEL", help=_MODEL.format("llama-3.1-70b"))],
    draft: Annotated[str, typer.Option(metavar="MODEL", help=_MODEL.format("llama-3.1-8b"))],
    gpus: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="devices of one node, such as 4xh100 or 4xh100,1xl4; or cpu, with the next two options"
        ),
    ],
    cpu_memory: Annotated[
        float | None, typer.Option(metavar="GB", help="memory of a machine without GPUs, in GB")
    ] = None,
    cpu_bandwidth: Annotated[
        float | None, typer.Option(metavar="GB/S", help="bandwidth of its memory, in GB/s")
    ] = None,
    cpu_tflops: Annotated[
        float, typer.Option(metavar="TFLOP/S", help="bfloat16 peak of its processors, in TFLOP/s")
    ] = 1.0,
    target_dtype: Annotated[str | None, typer.Option(metavar="FORMAT", help=_DTYPE)] = None,
    draft_dtype: Annotated[str | None, typer.Option(metavar="FORMAT", help="the same of the draft")] = None,
    sessions: Annotated[int, typer.Option(metavar="N", help="sessions that generate at a time")] = 1,
    context: Annotated[int, typer.Option(metavar="TOKENS", help="tokens of each session")] = 4096,
    acceptance: Annotated[
        str, typer.Option(metavar="LIST", help="odds that the draft's next token is the target's")
    ] = "0.5,0.6,0.7,0.8,0.9",
    round_trip: Annotated[
        str, typer.Option(metavar="LIST", help="ms from a draft on its own device to the target and back")
    ] = "0.5,10,40",
    bandwidth_share: Annotated[
        float, typer.Option(metavar="SHARE", help="share of the memory's bandwidth that a forward reaches")
    ] = 0.55,
    host_ms: Annotated[
        float, typer.Option("--host-ms", metavar="MS", help="ms of a target's step beside its forward")
    ] = 1.6,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="draw tokens/s over acceptance too")] = None,
) -> None:
    """Plan a target and a draft on GPUs before money is spent: what fits, and what it may bring.

    Only configurations are read: nothing is downloaded, and no GPU is needed. Weights and KV are
    counted; tokens/s are simulated.

    slipstream plan --target llama-3.1-70b --draft llama-3.1-8b --gpus 4xh200

    Thirty-two sessions, an 8-bit target, and a picture:

    slipstream plan --target qwen3-32b --draft qwen3-0.6b --gpus 2xl40s,1xl4 --target-dtype fp8
    --sessions 32 --svg plan.svg

    Processors instead of GPUs: slipstream plan --target qwen3-8b --draft qwen3-0.6b --gpus cpu
    --cpu-memory 64 --cpu-bandwidth 80
    """
    if svg is not None:
        require("slipstream", "plot")
        if not svg.parent.is_dir():
            fail(f"--svg {svg} cannot be written: {svg.parent} is no folder")
    with _plan_refusals():
        from slipstream.planning.devices import CpuFigures, groups_of
        from slipstream.planning.errors import PlanError
        from slipstream.planning.placing import Pair
        from slipstream.planning.plan import Question
        from slipstream.planning.steps import Assumptions

        for flag, value in (
            ("--cpu-memory", cpu_memory),
            ("--cpu-bandwidth", cpu_bandwidth),
            ("--cpu-tflops", cpu_tflops),
        ):
            _check_positive(flag, value)
        _check_positive("--bandwidth-share", bandwidth_share, 1.0)
        if not 0 <= host_ms < math.inf:
            raise PlanError(f"--host-ms is a number of milliseconds of at least 0, not {host_ms:g}")
        assumed = Assumptions(bandwidth_share=bandwidth_share, host_seconds=host_ms / 1e3)
        models = _model("--target", target, target_dtype), _model("--draft", draft, draft_dtype)
        question = Question(
            Pair(*models, context, assumed),
            groups_of(gpus, CpuFigures(cpu_memory, cpu_bandwidth, cpu_tflops)),
            sessions,
            _numbers("--acceptance", acceptance, 1.0),
            [trip / 1e3 for trip in _numbers("--round-trip", round_trip, 60_000.0)],
        )
    _report(question, _carried_out(question), as_json, svg)


def _model(flag: str, name: str, dtype: str | None) -> PlannedModel:
    from slipstream.planning.errors import PlanError
    from slipstream.planning.formats import format_of
    from slipstream.planning.models import model_shape
    from slipstream.planning.steps import PlannedModel

    try:
        shape = model_shape(name)
    except (PlanError, SlipstreamError) as error:  # a damaged GGUF file's too
        raise PlanError(f"{flag}: {error}") from error
    return PlannedModel(shape, format_of(shape, dtype, f"{flag}-dtype"))


def _carried_out(question: Question) -> Plan:
    from rich.progress import Progress

    from slipstream.planning.plan import make_plan, simulation_count

    with Progress(console=progress, transient=True) as bar:
        task = bar.add_task("simulating", total=simulation_count(question))
        return make_plan(question, lambda: bar.advance(task))


def _report(question: Question, found: Plan, as_json: bool, svg: Path | None) -> None:
    from slipstream.planning.advice import summary_of, warnings_of, what_fits
    from slipstream.planning.assumptions import assumptions_of
    from slipstream.planning.showing import as_dict, tables

    if as_json:
        typer.echo(json.dumps(as_dict(found)))
    else:
        console = Console(highlight=False)
        for table in tables(found):
            console.print(table)
        if summary := summary_of(found):
            console.print(summary, style="bold", markup=False, soft_wrap=True)
        for line in warnings_of(found):
            console.print(f"warning: {line}", style="yellow", markup=False, soft_wrap=True)
        console.print("assumptions:")
        for line in assumptions_of(found):
            console.print(f"- {line}", markup=False, soft_wrap=True)
    if not found.ways:
        changes = " or ".join(what_fits(question))
        fail(
            f"{plural(question.session_count, 'session')} of {question.pair.context} tokens: no place holds that; "
            + (f"what would fit: {changes}" if changes else "a smaller model would")
        )
    if svg is not None:
        _draw(found, svg)


def _draw(found: Plan, svg: Path) -> None:
    from slipstream.planning.picture import draw

    try:
        draw(found, svg)
    except OSError as error:
        fail(f"--svg {svg} cannot be written: {error.strerror or error}")
    progress.print(f"{svg} is written", markup=False, highlight=False, soft_wrap=True)


def _numbers(flag: str, text: str, most: float = math.inf) -> list[float]:
    """Return the numbers of a list. PlanError, which names the flag."""
    from slipstream.planning.errors import PlanError

    try:
        numbers = [float(item) for item in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(0 <= number <= most and math.isfinite(number) for number in numbers) or len(numbers) > _MOST_NUMBERS:
        limit = f"from 0 to {most:g}" if math.isfinite(most) else "of at least 0"
        raise PlanError(f"{flag} {text}: give up to {_MOST_NUMBERS} numbers {limit}, with commas between them")
    return sorted(set(numbers))


def _check_positive(flag: str, value: float | None, most: float = 1e9) -> None:
    from slipstream.planning.errors import PlanError

    if value is not None and not 0 < value <= most:
        raise PlanError(f"{flag} is above 0 and at most {most:g}, not {value:g}")


@contextmanager
def _plan_refusals() -> Iterator[None]:
    from slipstream.planning.errors import PlanError

    try:
        with refusals(""):
            yield
    except PlanError as error:
        fail(str(error))
