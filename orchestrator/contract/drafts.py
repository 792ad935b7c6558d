"""Conversion of an operator's requests, and of the drafts that it sees."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import asdict

from orchestrator.rounds.draft_figures import DraftFigures
from orchestrator.rounds.draft_status import DraftState, DraftStatus, TrialTerms
from orchestrator.sessions.turns.statistics import per_position
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.ratio_sums import RatioSums
from slipstream.rpc.wire import duration
from slipstream.v1 import operator_pb2

_USUAL_LEASE_SECONDS, _LONGEST_LEASE_SECONDS = 60.0, 3600.0
_LONGEST_ID, _LONGEST_ADDRESS, _LAST_PORT = 128, 255, 65535
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_SCHEMES = frozenset({"dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds", "google-c2p", "passthrough"})
"""Hosts that gRPC would read as the scheme of a URI: ``unix:1`` is a socket file."""

_STATES = {
    DraftState.CONNECTING: operator_pb2.DRAFT_STATE_CONNECTING,
    DraftState.SERVING: operator_pb2.DRAFT_STATE_SERVING,
    DraftState.AWAY: operator_pb2.DRAFT_STATE_AWAY,
    DraftState.MISMATCHED: operator_pb2.DRAFT_STATE_MISMATCHED,
}

Change = operator_pb2.AddDraftRequest | operator_pb2.SetDraftShareRequest | operator_pb2.RemoveDraftRequest


def check_change(request: Change) -> None:
    """Raise InvalidFieldsError if a request has wrong fields."""
    if violations := [*_violations(request)]:
        raise InvalidFieldsError(violations)


def trial_of(request: operator_pb2.AddDraftRequest | operator_pb2.SetDraftShareRequest) -> TrialTerms | None:
    """Return a checked request's trial; None if it asks for none."""
    if not request.HasField("trial"):
        return None
    trial = request.trial
    lease = trial.lease.ToNanoseconds() / 1e9 if trial.HasField("lease") else _USUAL_LEASE_SECONDS
    return TrialTerms(trial.share, lease)


def draft_message(status: DraftStatus) -> operator_pb2.Draft:
    """Return a draft as a message."""
    terms = status.trial
    trial = None
    if terms is not None:
        trial = operator_pb2.DraftTrial(share=terms.share, lease=duration(terms.lease_seconds))
    return operator_pb2.Draft(
        address=status.name,
        state=_STATES[status.state],
        model=status.model,
        weights_fingerprint=status.weights_fingerprint,
        trial=trial,
        session_count=status.session_count,
        figures=_figures(status.figures),
        trouble=status.trouble,
    )


def _figures(figures: DraftFigures) -> operator_pb2.DraftFigures:
    drafted, accepted = per_position(figures.drafted_lengths), per_position(figures.accepted_lengths)
    return operator_pb2.DraftFigures(
        session_count=figures.session_count,
        turn_count=figures.turn_count,
        token_count=figures.token_count,
        acceptance=_sums(figures.acceptance),
        speed=_sums(figures.speed),
        step_length=_sums(figures.step_length),
        drafted_per_position_counts=drafted,
        accepted_per_position_counts=[*accepted, *[0] * (len(drafted) - len(accepted))],
    )


def _sums(sums: RatioSums) -> operator_pb2.RatioSums:
    return operator_pb2.RatioSums(**asdict(sums))


def _violations(request: Change) -> Iterator[FieldViolation]:
    if not (1 <= len(request.request_id) <= _LONGEST_ID and request.request_id.isprintable()):
        yield FieldViolation("request_id", f"must have from 1 to {_LONGEST_ID} printable characters")
    if not _is_address(request.address):
        yield FieldViolation("address", "must be host:port, such as 10.0.0.7:50053 or draft.internal:50053")
    if not isinstance(request, operator_pb2.RemoveDraftRequest) and request.HasField("trial"):
        yield from _trial_violations(request.trial)


def _trial_violations(trial: operator_pb2.DraftTrial) -> Iterator[FieldViolation]:
    if not 0 <= trial.share <= 1:
        yield FieldViolation("trial.share", f"must be from 0 to 1, but is {trial.share:g}")
    if trial.HasField("lease") and not 0 < trial.lease.ToNanoseconds() <= _LONGEST_LEASE_SECONDS * 1e9:
        yield FieldViolation("trial.lease", f"must be above 0 and at most {_LONGEST_LEASE_SECONDS:g} s")


def _is_address(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if len(address) > _LONGEST_ADDRESS or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) <= _LAST_PORT:
        return False
    if host.startswith("[") and host.endswith("]"):
        try:
            return ipaddress.IPv6Address(host[1:-1]) is not None
        except ValueError:
            return False
    return host.lower() not in _SCHEMES and _HOST_NAME.fullmatch(host) is not None
