"""Answers of an orchestrator's processes to a change of its drafts. Pure."""

from __future__ import annotations

from slipstream.cli.swapping.operators import Processes
from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError, error_of
from slipstream.v1 import operator_pb2

_REFUSALS = (Reason.DRAFT_ON_TRIAL, Reason.DRAFT_LIMIT, Reason.INVALID_FIELDS)


def may_pass(error: PeerError) -> bool:
    """Return whether the orchestrator is away or slow, rather than refuses."""
    return error.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


def drafts_in(processes: Processes) -> dict[str, operator_pb2.Draft]:
    """Return the drafts by their addresses. One that serves in any process counts as serving."""
    found: dict[str, operator_pb2.Draft] = {}
    for process in processes:
        for draft in process.drafts:
            known = found.get(draft.address)
            if known is None or draft.state == operator_pb2.DRAFT_STATE_SERVING:
                found[draft.address] = draft
    return found


def lacking_at(processes: Processes, address: str) -> str:
    """Return where the draft at an address does not serve; empty if it serves in every process that
    answers."""
    for process in processes:
        refusal = error_of(process.error) if process.HasField("error") else None
        if refusal is not None and may_pass(refusal):
            continue
        drafts = [draft for draft in process.drafts if draft.address == address]
        if not any(draft.state == operator_pb2.DRAFT_STATE_SERVING for draft in drafts):
            why = refusal or next((draft.trouble for draft in drafts), "") or "it does not reach the draft"
            return f"the process at {process.address}: {why}"
    return ""


def lacks_it(processes: Processes) -> bool:
    """Return whether a process does not know the draft on trial."""
    return any(_reason_of(process) == Reason.DRAFT_NOT_FOUND for process in processes)


def refusal_of(processes: Processes) -> PeerError | None:
    """Return why a process refuses the trial; None if none does. One that is away refuses
    nothing."""
    for process in processes:
        if process.HasField("error") and _reason_of(process) in _REFUSALS:
            error = error_of(process.error)
            return PeerError(error.code, error.reason, f"the process at {process.address}: {error}", error.metadata)
    return None


def _reason_of(process: operator_pb2.ProcessDrafts) -> str:
    return error_of(process.error).reason if process.HasField("error") else ""
