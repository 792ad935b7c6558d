"""The errors page: each reason with its status code, its meaning and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.reasons import Audience, Reason
from tools.reference.markdown import cell, generated, paragraph, table

_HEAD = """# Errors

Every refusal is a gRPC status with a `google.rpc.ErrorInfo` in domain `slipstream`. Its `reason` is
one of the names below. Match on it, never on the message. A client that does not know a reason goes
by the status code.

- A bad field comes with a `google.rpc.BadRequest`. It names the field and what would be right.
- A `google.rpc.RetryInfo` means that a retry can help, and when. Retry with the same `request_id`:
  the call then happens once. [Overload](../guides/overload.md) shows the loop.
- In a chat an error comes in band, and the chat goes on.

In Python a refusal raises `PeerError` with `code`, `reason`, `metadata`, `violations` and
`retry_after`.
"""

_SECTIONS = (
    ("For callers", Audience.CALLERS, "A call or a turn of the public API fails with these."),
    (
        "Between the services",
        Audience.ITEMS,
        "Drafts and verifiers answer the orchestrator with these. It handles them.",
    ),
    ("About peers", Audience.PEERS, "The orchestrator records these in logs, traces and metrics."),
    ("At start", Audience.START, "A process prints one of these and ends, or does not start."),
    ("In the client", Audience.CLIENT, "The Python client and the commands raise these themselves."),
)


def page() -> str:
    """Return the page. A reason stands in the first section that it belongs to."""
    parts = [generated("slipstream/reasons.py"), _HEAD]
    shown: set[Reason] = set()
    for title, audience, text in _SECTIONS:
        reasons = [reason for reason in Reason if audience in reason.audience and reason not in shown]
        shown.update(reasons)
        if reasons:
            rows = table(["reason", "status", "meaning", "what to do"], _rows(reasons))
            parts.append(f"\n## {title}\n\n{paragraph(text)}\n{rows}")
    return "".join(parts)


def _rows(reasons: list[Reason]) -> Iterator[list[str]]:
    for reason in sorted(reasons):
        yield [f"`{reason}`", reason.code.name, cell(reason.meaning), cell(reason.action)]
