"""``slipstream drift``: acceptance by task, compared with its own last week."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from slipstream.cli.drift_report import as_dict, print_report
from slipstream.cli.ending import refusals
from slipstream.cli.output import output
from slipstream.cli.reaching import Server, with_server
from slipstream.drift.change import Demand
from slipstream.drift.findings import findings_of, worse


@with_server
def drift(
    server: Server,
    least_tokens: Annotated[
        int, typer.Option(min=100, help="draft tokens that are needed now, and in the week before")
    ] = 1000,
    least_difference: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="fall in acceptance that matters; a smaller one is no drift")
    ] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead, for a program")] = False,
) -> None:
    """Compare each task's acceptance with its own last week: what fell, since when, and what to do.

    slipstream drift --address 127.0.0.1:50051

    A task is a tag of the request: Settings(task="summaries") in Python, "metadata": {"task":
    "summaries"} in the HTTP APIs. Without tags all requests are one task.

    A fall is told if it is larger than four standard errors and than --least-difference, and if the
    most recent tokens still show it. Acceptance changes the speed, never the text.

    The exit status is 0 without drift, 1 with drift, and 2 if the orchestrator cannot be asked.

    In cron: slipstream drift > drift.txt 2>&1 || mail -s drift ops@example.org < drift.txt
    """
    with refusals(server.address, status=2), server.client() as client:
        history = client.acceptance_history()
    findings = findings_of(history.hours, Demand(least_tokens, least_difference))
    if as_json:
        typer.echo(json.dumps(as_dict(findings, history.target_changes)))
    else:
        print_report(findings, history.target_changes, output())
    if worse(findings):
        sys.exit(1)
