"""A page of sessions fits into the messages that clients receive."""

from __future__ import annotations

from orchestrator.contract.commands import MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE
from orchestrator.contract.events import fitting_sessions
from slipstream.v1 import orchestrator_pb2, session_pb2

_RECEIVED = 4 * 2**20
"""Bytes that gRPC's clients receive by default."""


def test_a_page_of_the_largest_sessions_is_cut_before_it_is_too_large() -> None:
    wide = "\U0001f642"
    metadata = {
        f"{index:02}" + wide * (MAX_METADATA_KEY - 2): wide * MAX_METADATA_VALUE for index in range(MAX_METADATA)
    }
    sessions = [session_pb2.Session(id=f"{index:016x}", metadata=metadata) for index in range(1000)]
    shown = fitting_sessions(sessions)
    assert 1 < len(shown) < 1000 and shown == sessions[: len(shown)]
    page = orchestrator_pb2.ListSessionsResponse(sessions=shown, next_page_token="x" * 100)
    assert 3_300_000 < page.ByteSize() < _RECEIVED
    plain = [session_pb2.Session(id=f"{index:016x}") for index in range(1000)]
    assert fitting_sessions(plain) == plain and fitting_sessions([]) == []
