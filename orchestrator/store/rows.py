"""What the store keeps, as it keeps it: names, numbers, and payloads that only
`orchestrator.sessions` can read. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """A process that keeps sessions. As long as its ``beat`` grows it lives."""

    id: str
    address: str
    """Where the others pass calls on to."""
    place: str
    """What only one living process can have: two owners of one place are one process and its
    successor."""
    beat: int = 0


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as it was last written. Times are microseconds since the epoch.

    ``owner`` has it under ``epoch``, which grows with each change of hands. ``target`` names the
    weights that its tokens come from. A generation's session is not ``listed``; it is number
    ``choice`` of its request's.
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
    """Whose it is."""


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn as it was written before its first token.

    Its prompt is the first ``shared_count`` of the session's tokens as they were, and then
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
    """What a turn has become: its ``tokens`` as a prompt's, none if it was undone, and how it
    ended. Where it is ``forgotten`` its request may try again."""

    tokens: bytes
    payload: str
    forgotten: bool


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn with what is known of it since: its end, or else which ``tokens`` it had when that was
    last noted."""

    begun: TurnRow
    end: EndRow | None
    tokens: bytes = b""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a session's row says of it beside its turns. ``last_active`` is microseconds since the
    epoch."""

    last_active: int
    turn_count: int
    token_count: int
    message_count: int
