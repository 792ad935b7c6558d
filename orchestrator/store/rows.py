"""Rows of the store. Only `orchestrator.sessions` can read their payloads. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """A process that owns sessions. It is alive as long as its ``beat`` grows."""

    id: str
    address: str
    """Address to which other processes forward calls."""
    place: str
    """A name that only one living process can have. Two owners with one place are a process and its
    successor."""
    beat: int = 0


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as it was last written. Times are microseconds since the epoch.

    ``owner`` owns it under ``epoch``, which grows with each change of owner. ``target`` names the
    weights that its tokens come from. A generation's session is not ``listed``; it is answer number
    ``choice`` of its request.
    """

    id: str
    owner: str
    epoch: int
    listed: bool
    created: int
    last_active: int
    request_id: str
    fingerprint: bytes
    choice: int
    target: str
    payload: str
    turn_count: int = 0
    token_count: int = 0
    message_count: int = 0
    running_turn: int | None = None
    principal: str = ""
    """The principal that owns it."""


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn as it was written before its first token.

    Its prompt is the first ``shared_count`` of the session's tokens before the turn, and then
    ``prompt``: int32, little-endian.
    """

    turn: int
    request_id: str
    fingerprint: bytes
    shared_count: int
    prompt: bytes
    payload: str


@dataclass(frozen=True, slots=True)
class EndRow:
    """The end of a turn: its ``tokens``, none if it was undone, and how it ended. If it is
    ``forgotten``, its request may try again."""

    tokens: bytes
    payload: str
    forgotten: bool


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn with its end, or else the ``tokens`` that were last written of it."""

    begun: TurnRow
    end: EndRow | None
    tokens: bytes = b""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts in a session's row. ``last_active`` is microseconds since the epoch."""

    last_active: int
    turn_count: int
    token_count: int
    message_count: int
