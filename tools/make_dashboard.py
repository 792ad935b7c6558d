"""Write deploy/grafana/slipstream.json (or, with --check, say whether it is up to date).

The panels are below, row by row, and so are their queries; what Grafana wants around them is at the
end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.telemetry import instruments
from slipstream.telemetry.instruments import Instrument

DASHBOARD = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "slipstream.json"

_WIDTH = 24
"""Of Grafana's grid."""

_SELECTED = 'job=~"$job",instance=~"$instance"'
_ORCHESTRATORS = 'and on (job, instance) slipstream_info{service="orchestrator"}'
"""Which of the processes that have a metric of both kinds."""
_MODEL_SERVICES = 'and on (job, instance) slipstream_info{service=~"verifier|draft"}'


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel, and what its series are called."""

    expression: str
    legend: str = ""
    format: str = "time_series"
    instant: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``lines`` are series of a stacked panel that are drawn over it and not stacked."""

    title: str
    text: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    stacked: bool = False
    bars: bool = False
    lines: Sequence[str] = ()
    maximum: float | None = None
    colours: Sequence[tuple[float | None, str]] = ()
    """Of a number from each of these on; the first one's is None."""
    words: dict[int, str] = field(default_factory=dict)
    """Instead of numbers."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question."""

    title: str
    panels: Sequence[Panel]


# --- queries


def _now(name: str, where: str = "") -> str:
    return f"{name}{{{_SELECTED}{where and ','}{where}}}"


def _sum(inner: str, by: str) -> str:
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def _rate(name: str, by: str = "", where: str = "") -> str:
    return _sum(f"rate({_now(name, where)}[$__rate_interval])", by)


def _a_second(instrument: Instrument, by: str = "") -> str:
    return _rate(instrument.exposed_name, by)


def _events(instrument: Instrument, by: str = "", within: str = "$__rate_interval") -> str:
    """How often it happened within a time. A counter with a reason is not there before that
    reason's first event, and a counter that begins at 1 has not increased: one that was not there
    an hour ago counts as a whole."""
    name = _now(instrument.exposed_name)
    if "reason" not in instrument.labels:
        return _sum(f"increase({name}[{within}])", by)
    return _sum(f"{name} unless max_over_time({name}[1h] offset {within}) or increase({name}[{within}])", by)


def _gauge(instrument: Instrument, by: str = "", of: str = "") -> str:
    return _sum(f"{_now(instrument.exposed_name)} {of}".strip(), by)


def _mean(histogram: Instrument, by: str = "", where: str = "", each: Instrument | None = None) -> str:
    """A sum over what it was observed for, or over ``each`` of another histogram's observations."""
    count = f"{(each or histogram).exposed_name}_count"
    return f"{_rate(f'{histogram.exposed_name}_sum', by, where)} / {_rate(count, by, where if each is None else '')}"


def _quantile(share: float, histogram: Instrument, by: str = "", where: str = "") -> str:
    buckets = _rate(f"{histogram.exposed_name}_bucket", f"le, {by}" if by else "le", where)
    return f"histogram_quantile({share:g}, {buckets})"


def _middle_and_slow(histogram: Instrument, by: str = "") -> list[Query]:
    name = f"{by} " if by else ""
    grouping = "job, instance" if by == _PROCESS else by.strip("{}")
    return [
        Query(_quantile(0.5, histogram, grouping), f"{name}p50"),
        Query(_quantile(0.95, histogram, grouping), f"{name}p95"),
    ]


_PROCESS = "{{job}} {{instance}}"

_PARTS: tuple[tuple[str, Instrument, str], ...] = (
    ("draft wait", instruments.DRAFT_WAIT, ""),
    ("queue", instruments.QUEUE_TIME, 'peer="verifier"'),
    ("verify", instruments.VERIFY_TIME, ""),
    ("network", instruments.NETWORK_TIME, 'peer="verifier"'),
)
"""What a round's time is made of, in its order."""

_BESIDE = (("verifier idle", instruments.VERIFIER_IDLE, ""), ("whole round", instruments.ROUND_TIME, ""))
"""What is no part of it: the verifier is idle for a session while its draft is waited for, and
between rounds."""


def _parts(share: float) -> list[Query]:
    return [Query(_quantile(share, part, where=where), name) for name, part, where in (*_PARTS, *_BESIDE)]


# --- panels

_ACCEPTANCE = f"{_a_second(instruments.ACCEPTED_TOKENS)} / {_a_second(instruments.DRAFT_TOKENS)}"
_ACCEPTANCE_LENGTH = f"1 + {_a_second(instruments.ACCEPTED_TOKENS)} / {_a_second(instruments.DRAFTS)}"
_ACCEPTED_BY_DRAFT = _a_second(instruments.DRAFT_ACCEPTED_TOKENS, "address")
_ACCEPTANCE_BY_DRAFT = f"{_ACCEPTED_BY_DRAFT} / {_a_second(instruments.DRAFT_VERIFIED_TOKENS, 'address')}"
_EARLY = 'position=~"[0-7]"'
_DRAFTED = _rate(instruments.DRAFT_TOKENS_PER_POS.exposed_name, "position", _EARLY)
_ACCEPTED = _rate(instruments.ACCEPTED_TOKENS_PER_POS.exposed_name, "position", _EARLY)
_ACCEPTANCE_BY_POSITION = f"({_ACCEPTED} or 0 * {_DRAFTED}) / {_DRAFTED}"
"""Where nothing was ever accepted there is no counter, and the share is 0."""

ROWS = (
    Row(
        "At a glance",
        (
            Panel(
                "Tokens a second",
                "Tokens that rounds brought, over all sessions.",
                "suffix: tokens/s",
                [Query(_a_second(instruments.GENERATION_TOKENS))],
                kind="stat",
                width=4,
                height=4,
            ),
            Panel(
                "Acceptance",
                "Share of the draft's tokens that the target accepts; red under 30%, where SlipstreamAcceptanceLow fires.",
                "percentunit",
                [Query(_ACCEPTANCE)],
                kind="stat",
                width=4,
                height=4,
                colours=[(None, "red"), (0.3, "green")],
            ),
            Panel(
                "Mean acceptance length",
                "Tokens that a round with a proposal brings: the accepted ones, and the target's own after them.",
                "suffix: tokens",
                [Query(_ACCEPTANCE_LENGTH)],
                kind="stat",
                width=4,
                height=4,
            ),
            Panel(
                "Turns running",
                "Turns that have begun and not ended.",
                "short",
                [Query(_gauge(instruments.REQUESTS_RUNNING, of=_ORCHESTRATORS))],
                kind="stat",
                width=4,
                height=4,
            ),
            Panel(
                "Messages waiting",
                "Messages of a chat that wait for the turn before them.",
                "short",
                [Query(_gauge(instruments.REQUESTS_WAITING, of=_ORCHESTRATORS))],
                kind="stat",
                width=4,
                height=4,
            ),
            Panel(
                "Turns failed",
                "Turns that could not go on, in the time shown.",
                "short",
                [Query(_events(instruments.REQUESTS_FAILED, within="$__range"), instant=True)],
                kind="stat",
                width=4,
                height=4,
                colours=[(None, "green"), (1, "red")],
            ),
            Panel(
                "Tokens",
                "Tokens generated, and prompt tokens of turns that have a first token.",
                "suffix: tokens/s",
                [
                    Query(_a_second(instruments.GENERATION_TOKENS), "generated"),
                    Query(_a_second(instruments.PROMPT_TOKENS), "prompt"),
                ],
                width=6,
            ),
            Panel(
                "Time to first token",
                "From a turn's beginning to its first token; SlipstreamFirstTokenSlow fires at a p95 of 2.5 s.",
                "s",
                _middle_and_slow(instruments.TIME_TO_FIRST_TOKEN),
                width=6,
            ),
            Panel(
                "Time between tokens",
                "Of each token after a turn's first round: its round's time over the tokens it brought.",
                "s",
                _middle_and_slow(instruments.INTER_TOKEN_LATENCY),
                width=6,
            ),
            Panel(
                "Whole turns",
                "From a turn's beginning to its end.",
                "s",
                _middle_and_slow(instruments.E2E_LATENCY),
                width=6,
            ),
        ),
    ),
    Row(
        "Speculation",
        (
            Panel(
                "Acceptance by position",
                "Share of the draft tokens at the first eight places of a proposal that were accepted; 0 is the first.",
                "percentunit",
                [Query(_ACCEPTANCE_BY_POSITION, "{{position}}")],
                maximum=1,
            ),
            Panel(
                "Draft tokens",
                "Draft tokens verified and accepted: what lies between the two was drafted for nothing.",
                "suffix: tokens/s",
                [
                    Query(_a_second(instruments.DRAFT_TOKENS), "verified"),
                    Query(_a_second(instruments.ACCEPTED_TOKENS), "accepted"),
                ],
            ),
            Panel(
                "Proposal length",
                "Draft tokens of a round with a proposal, and how many of them were accepted.",
                "suffix: tokens",
                [
                    Query(f"{_a_second(instruments.DRAFT_TOKENS)} / {_a_second(instruments.DRAFTS)}", "verified"),
                    Query(f"{_a_second(instruments.ACCEPTED_TOKENS)} / {_a_second(instruments.DRAFTS)}", "accepted"),
                ],
            ),
            Panel(
                "Rounds by outcome",
                "What a round's last token is: recovered after a rejection, bonus after a whole proposal, plain without one.",
                "suffix: rounds/s",
                [Query(_a_second(instruments.ROUNDS, "outcome"), "{{outcome}}")],
                stacked=True,
            ),
            Panel(
                "Rounds by way",
                "What the draft did for a round: nothing, a proposal that was waited for, branches prepared, rounds ahead.",
                "suffix: rounds/s",
                [Query(_a_second(instruments.ROUNDS, "way"), "{{way}}")],
                stacked=True,
            ),
            Panel(
                "Rounds by rung",
                "Who made the proposal that was verified: the draft, the session's own n-grams, or none.",
                "suffix: rounds/s",
                [Query(_a_second(instruments.ROUNDS, "rung"), "{{rung}}")],
                stacked=True,
            ),
            Panel(
                "Branch hit rate",
                "How often what the draft prepared for was what the verifier answered.",
                "percentunit",
                [
                    Query(
                        f"{_a_second(instruments.BRANCH_HITS)}"
                        f" / ({_a_second(instruments.BRANCH_HITS)} + {_a_second(instruments.BRANCH_MISSES)})",
                        "hits",
                    )
                ],
                width=6,
                maximum=1,
            ),
            Panel(
                "Sessions' acceptance",
                "Each round: its session's acceptance over the last 200 draft tokens. Two clouds are two kinds of session.",
                "percentunit",
                [
                    Query(
                        _rate(f"{instruments.WINDOW_ACCEPTANCE.exposed_name}_bucket", "le"), "{{le}}", format="heatmap"
                    )
                ],
                kind="heatmap",
                width=6,
            ),
            Panel(
                "Sessions' acceptance, quantiles",
                "The same: the tenth that fares worst, the middle, the tenth that fares best.",
                "percentunit",
                [
                    Query(_quantile(share, instruments.WINDOW_ACCEPTANCE), f"p{share:.0%}".rstrip("%"))
                    for share in (0.1, 0.5, 0.9)
                ],
                width=6,
                maximum=1,
            ),
            Panel(
                "Speculation switched off",
                "Running sessions that leave the draft alone just now, and how often one began to, for it did not pay.",
                "short",
                [
                    Query(_gauge(instruments.SESSIONS_NOT_DRAFTING), "sessions without"),
                    Query(_events(instruments.SPECULATION_SWITCHED_OFF), "switched off"),
                ],
                width=6,
            ),
        ),
    ),
    Row(
        "Where a round's time goes",
        (
            Panel(
                "Mean round",
                "What a round waits for, on average; what is missing up to the whole round is the orchestrator's own.",
                "s",
                [
                    Query(_mean(part, where=where, each=instruments.ROUND_TIME), name)
                    for name, part, where in (*_PARTS, *_BESIDE)
                ],
                stacked=True,
                lines=[name for name, _, _ in _BESIDE],
            ),
            Panel("Parts of a round, p50", "The middle of each part's times.", "s", _parts(0.5)),
            Panel("Parts of a round, p95", "One in twenty takes longer.", "s", _parts(0.95)),
            Panel(
                "The draft's time",
                "A draft request's forwards, on the draft's clock; where it works ahead no round waits for all of it.",
                "s",
                _middle_and_slow(instruments.DRAFT_TIME),
            ),
            Panel(
                "Queues at the peers",
                "From a request's arrival at a peer to its first forward.",
                "s",
                _middle_and_slow(instruments.QUEUE_TIME, "{{peer}}"),
            ),
            Panel(
                "Network",
                "What a request took beyond the peer's own account of it: the way there and back, and both ends' event loops.",
                "s",
                _middle_and_slow(instruments.NETWORK_TIME, "{{peer}}"),
            ),
        ),
    ),
    Row(
        "Peers",
        (
            Panel(
                "Reachable",
                "Whether each orchestrator's peers say that they serve.",
                "short",
                [
                    Query(
                        f"min by (job, instance, peer, address) ({_now(instruments.PEER_REACHABLE.exposed_name)})",
                        "{{peer}} {{address}} from {{instance}}",
                    )
                ],
                kind="state-timeline",
                width=12,
                words={0: "away", 1: "there"},
            ),
            Panel(
                "Faults of peers",
                "What a draft or a verifier sent that cannot be, by the field that was wrong.",
                "short",
                [Query(_events(instruments.PEER_FAULTS, "peer, address, field"), "{{peer}} {{address}} {{field}}")],
                width=12,
                bars=True,
            ),
            Panel(
                "Reconnects",
                "Streams to a peer that were opened after its first.",
                "short",
                [Query(_events(instruments.RECONNECTS, "peer, address"), "{{peer}} {{address}}")],
                width=12,
                bars=True,
            ),
            Panel(
                "Draft fallbacks",
                "Requests that the draft failed, by why; their rounds went on without a proposal.",
                "short",
                [Query(_events(instruments.DRAFT_FALLBACKS, "reason"), "{{reason}}")],
                width=6,
                bars=True,
            ),
            Panel(
                "Draft recoveries",
                "Times that the draft answered again after it had failed.",
                "short",
                [Query(_events(instruments.DRAFT_RECOVERIES), "recoveries")],
                width=6,
                bars=True,
            ),
            Panel(
                "Verify retries",
                "Verifications that were asked for again, by why.",
                "short",
                [Query(_events(instruments.VERIFY_RETRIES, "reason"), "{{reason}}")],
                width=6,
                bars=True,
            ),
            Panel(
                "Failovers",
                "Sessions that moved to another verifier or draft since theirs was away.",
                "short",
                [
                    Query(_events(instruments.VERIFIER_FAILOVERS), "verifiers"),
                    Query(_events(instruments.DRAFT_FAILOVERS), "drafts"),
                ],
                width=6,
                bars=True,
            ),
            Panel(
                "Sessions of each peer",
                "Sessions that live on a verifier or a draft.",
                "short",
                [Query(_gauge(instruments.PEER_SESSIONS, "peer, address"), "{{peer}} {{address}}")],
                width=6,
            ),
            Panel(
                "Acceptance of each draft",
                "Share of a draft's tokens that the target accepts.",
                "percentunit",
                [Query(_ACCEPTANCE_BY_DRAFT, "{{address}}")],
                width=6,
                maximum=1,
            ),
            Panel(
                "Places for turns",
                "Turns that may run at once, as verifications are measured, and those that run.",
                "short",
                [
                    Query(_gauge(instruments.TURN_PLACES), "places"),
                    Query(_gauge(instruments.REQUESTS_RUNNING, of=_ORCHESTRATORS), "running"),
                    Query(_gauge(instruments.TURN_PLACES_SET_BY, "source"), "processes whose places are {{source}}"),
                ],
                width=6,
            ),
            Panel(
                "What places are limited by",
                "How much is used of what turns share: places, memory for KV, the queue. At 100% turns wait or are refused.",
                "percentunit",
                [
                    Query(
                        f"{_gauge(instruments.ADMISSION_USED, 'limit')} / {_gauge(instruments.ADMISSION_LIMIT, 'limit')}",
                        "{{limit}}",
                    )
                ],
                width=6,
                maximum=1,
            ),
            Panel(
                "Refused for want of a place",
                "Requests refused as OVERLOADED, by what there was too little of.",
                "short",
                [Query(_events(instruments.ADMISSION_REFUSED, "limit"), "{{limit}}")],
                width=6,
                bars=True,
            ),
            Panel(
                "Calls refused",
                "Calls of any method that ended with an error, by method and reason.",
                "short",
                [Query(_events(instruments.CALLS_REFUSED, "method, reason"), "{{method}} {{reason}}")],
                width=6,
                bars=True,
            ),
            Panel(
                "Context lost between turns",
                "Tokens a second that a next message's prompt could not keep, so that their KV is computed again.",
                "suffix: tokens/s",
                [Query(_a_second(instruments.LOST_CONTEXT_TOKENS), "lost")],
                width=6,
            ),
            Panel(
                "Sessions can be written",
                "1 while the store takes what turns need; 0 where the disk is full or the database away.",
                "short",
                [Query(_gauge(instruments.STORE_WRITABLE, "instance"), "{{instance}}")],
                width=6,
                maximum=1,
            ),
            Panel(
                "Wait for a place",
                "From asking for a turn to its place; who would wait for longer than a burst may is refused with OVERLOADED.",
                "s",
                _middle_and_slow(instruments.PLACE_WAIT),
                width=6,
            ),
        ),
    ),
    Row(
        "Model services",
        (
            Panel(
                "Steps a second",
                "Forwards of each draft and verifier.",
                "suffix: steps/s",
                [Query(_a_second(instruments.STEPS, "job, instance"), _PROCESS)],
                width=6,
            ),
            Panel(
                "Step time",
                "A forward, choosing included.",
                "s",
                _middle_and_slow(instruments.STEP_TIME, _PROCESS),
                width=6,
            ),
            Panel(
                "Rows a step",
                "Tokens that a forward computes, over all its sequences, on average.",
                "suffix: rows",
                [Query(_mean(instruments.STEP_TOKENS, "job, instance"), _PROCESS)],
                width=6,
            ),
            Panel(
                "Items a step",
                "Items that take part in a forward, on average: how well sessions are batched.",
                "suffix: items",
                [Query(_mean(instruments.STEP_ITEMS, "job, instance"), _PROCESS)],
                width=6,
            ),
            Panel(
                "KV pages held",
                "Share of the pages that open sequences hold; SlipstreamKVNearlyFull fires above 90%.",
                "percentunit",
                [Query(f"max by (job, instance) ({_now(instruments.KV_USAGE.exposed_name)})", _PROCESS)],
                width=6,
                maximum=1,
            ),
            Panel(
                "KV pages by state",
                "Held by open sequences, cached for prefix reuse, free.",
                "suffix: pages",
                [Query(_gauge(instruments.KV_PAGES, "job, instance, state"), f"{_PROCESS} {{{{state}}}}")],
                width=6,
                stacked=True,
            ),
            Panel(
                "Prefix cache hit rate",
                "Share of the prompt tokens looked up in a service's cache that were there.",
                "percentunit",
                [
                    Query(
                        f"{_a_second(instruments.PREFIX_CACHE_HITS, 'job, instance')}"
                        f" / {_a_second(instruments.PREFIX_CACHE_QUERIES, 'job, instance')}",
                        _PROCESS,
                    )
                ],
                width=6,
                maximum=1,
            ),
            Panel(
                "Preemptions",
                "Idle sequences whose pages were taken for others: they are computed again.",
                "short",
                [Query(_events(instruments.PREEMPTIONS, "job, instance"), _PROCESS)],
                width=6,
                bars=True,
            ),
            Panel(
                "Items waiting and in work",
                "Items before their first forward, and after it.",
                "short",
                [
                    Query(
                        _gauge(instruments.REQUESTS_WAITING, "job, instance", _MODEL_SERVICES), f"{_PROCESS} waiting"
                    ),
                    Query(
                        _gauge(instruments.REQUESTS_RUNNING, "job, instance", _MODEL_SERVICES), f"{_PROCESS} in work"
                    ),
                ],
                width=6,
            ),
            Panel(
                "Queue",
                "From an item's arrival to its first forward.",
                "s",
                _middle_and_slow(instruments.ITEM_QUEUE_TIME, _PROCESS),
                width=6,
            ),
            Panel(
                "Items answered",
                "By how: ok, or the reason of the error.",
                "suffix: items/s",
                [Query(_a_second(instruments.ITEMS, "job, instance, outcome"), f"{_PROCESS} {{{{outcome}}}}")],
                width=6,
                stacked=True,
            ),
            Panel(
                "Open sequences",
                "Handles that orchestrators have opened, each under a lease.",
                "short",
                [Query(_gauge(instruments.SEQUENCES, "job, instance"), _PROCESS)],
                width=6,
            ),
        ),
    ),
    Row(
        "Requests",
        (
            Panel(
                "Turns ended",
                "Turns that have their answer, by why they ended.",
                "suffix: turns/s",
                [Query(_a_second(instruments.REQUESTS_SUCCEEDED, "finished_reason"), "{{finished_reason}}")],
                width=6,
                stacked=True,
            ),
            Panel(
                "Turns failed by reason",
                "Turns that could not go on, by the reason that clients got.",
                "short",
                [Query(_events(instruments.REQUESTS_FAILED, "reason"), "{{reason}}")],
                width=6,
                bars=True,
            ),
            Panel(
                "Requests refused",
                "Messages and generations that never began, by the reason that clients got.",
                "short",
                [Query(_events(instruments.REQUESTS_REJECTED, "reason"), "{{reason}}")],
                width=6,
                bars=True,
            ),
            Panel(
                "Sessions",
                "Sessions kept, and how many were dropped for they were idle for too long.",
                "short",
                [
                    Query(_gauge(instruments.SESSIONS), "kept"),
                    Query(_events(instruments.SESSIONS_EXPIRED), "expired"),
                ],
                width=6,
            ),
        ),
    ),
    Row(
        "Processes",
        (
            Panel(
                "Up",
                "Whether Prometheus reaches each process.",
                "short",
                [Query(f"min by (job, instance) ({_now('up')})", _PROCESS)],
                kind="state-timeline",
                width=6,
                words={0: "down", 1: "up"},
            ),
            Panel(
                "Memory",
                "Resident memory of each process.",
                "bytes",
                [Query(f"sum by (job, instance) ({_now('process_resident_memory_bytes')})", _PROCESS)],
                width=6,
            ),
            Panel(
                "Processor time",
                "Cores that each process keeps busy.",
                "suffix: cores",
                [Query(_rate("process_cpu_seconds_total", "job, instance"), _PROCESS)],
                width=6,
            ),
            Panel(
                "Restarts",
                "How often each address had a new process, in the time shown.",
                "short",
                [
                    Query(
                        f"sum by (job, instance) (changes({_now('process_start_time_seconds')}[$__range]))",
                        _PROCESS,
                        instant=True,
                    )
                ],
                kind="stat",
                width=6,
            ),
            Panel(
                "Tasks",
                "Tasks of each process's event loop: what grows while nothing more is asked is a leak.",
                "short",
                [Query(f"sum by (job, instance) ({_now(instruments.ASYNCIO_TASKS.exposed_name)})", _PROCESS)],
                width=6,
            ),
            Panel(
                "What runs here",
                "Versions, models and the fingerprints of what answers; where one has changed, nothing compares with before.",
                "none",
                [Query(_now(instruments.INFO.exposed_name), format="table", instant=True)],
                kind="table",
                width=12,
            ),
            Panel(
                "Rounds not traced",
                "Rounds of traced turns that have no span of their own, since there were too many.",
                "suffix: rounds/s",
                [Query(_a_second(instruments.SPANS_FOLDED), "folded")],
                width=6,
            ),
        ),
    ),
)


# --- what Grafana wants around them

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """As Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        panels.append(_row(row.title, len(panels) + 1, top))
        top += 1
        left = tallest = 0
        for panel in row.panels:
            if left + panel.width > _WIDTH:
                left, top, tallest = 0, top + tallest, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append(_panel(panel, len(panels) + 1, place))
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
    return {
        "uid": "slipstream",
        "title": "Slipstream",
        "description": "Speculative decoding across machines: how fast, how often the draft is right, and where the time goes.",
        "tags": ["slipstream"],
        "schemaVersion": 42,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "annotations": {"list": [_alerts()]},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}
    return [
        source,
        _variable("job", "Job", "label_values(slipstream_info, job)"),
        _variable("instance", "Instance", 'label_values(slipstream_info{job=~"$job"}, instance)'),
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # whenever the time shown changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Slipstream.+",alertstate="firing"}',
        "titleFormat": "{{alertname}}",
        "textFormat": _PROCESS,
    }


def _row(title: str, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [_target(query, chr(ord("A") + index)) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": [_unstacked(name) for name in panel.lines]},
        "options": _options(panel),
    }
    if panel.kind == "table":
        shown["transformations"] = [
            {"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True, "__name__": True}}}
        ]
    return shown


def _target(query: Query, letter: str) -> dict[str, Any]:
    return {
        "refId": letter,
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "format": query.format,
        "legendFormat": query.legend or "__auto",
        "instant": query.instant,
        "range": not query.instant,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": panel.unit, "custom": _drawing(panel)}
    if panel.kind in ("timeseries", "stat"):
        found["min"] = 0
    if panel.kind == "stat":
        found["noValue"] = "0"  # of what has never happened there is no series
    if panel.maximum is not None:
        found["max"] = panel.maximum
    if panel.colours:
        steps = [{"color": colour, "value": value} for value, colour in panel.colours]
        found["thresholds"] = {"mode": "absolute", "steps": steps}
    elif panel.kind == "stat":  # left to itself, Grafana paints red what is above 80
        found["color"] = {"mode": "fixed", "fixedColor": "text"}
    if panel.words:
        shown = {
            str(value): {"text": word, "color": "green" if value else "red", "index": index}
            for index, (value, word) in enumerate(panel.words.items())
        }
        found["mappings"] = [{"type": "value", "options": shown}]
    return found


def _drawing(panel: Panel) -> dict[str, Any]:
    if panel.kind != "timeseries":
        return {}
    return {
        "drawStyle": "bars" if panel.bars else "line",
        "fillOpacity": 60 if panel.bars else 25 if panel.stacked else 0,
        "lineWidth": 1,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked or panel.bars else "none", "group": "A"},
    }


def _unstacked(name: str) -> dict[str, Any]:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [
            {"id": "custom.stacking", "value": {"mode": "none", "group": "A"}},
            {"id": "custom.fillOpacity", "value": 0},
            {"id": "custom.lineWidth", "value": 2},
        ],
    }


def _options(panel: Panel) -> dict[str, Any]:
    legend = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
    if panel.kind == "timeseries":
        return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    if panel.kind == "state-timeline":
        return {"legend": {**legend, "showLegend": False}, "mergeValues": True, "showValue": "auto", "rowHeight": 0.8}
    if panel.kind == "stat":
        drawn = "none" if panel.queries[0].instant else "area"
        return {"graphMode": drawn, "colorMode": "value", "reduceOptions": {"calcs": ["lastNotNull"], "values": False}}
    if panel.kind == "heatmap":
        return {
            "calculate": False,
            "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
            "yAxis": {"unit": panel.unit},
            "tooltip": {"mode": "single"},
            "legend": {"show": False},
        }
    return {"showHeader": True, "cellHeight": "sm"}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the dashboard is stale")
    options = parser.parse_args()
    text = json.dumps(dashboard(), indent=1) + "\n"
    if not options.check:
        DASHBOARD.write_text(text)
    elif not DASHBOARD.exists() or DASHBOARD.read_text() != text:
        sys.exit(f"{DASHBOARD.name} is stale: run python tools/make_dashboard.py and commit the result")


if __name__ == "__main__":
    main()
