"""The requests that `orchestrator.contract` makes, and the load that it reads."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from orchestrator.sessions.admission.principal import ANONYMOUS, Principal
from orchestrator.sessions.conversation.messages import NO_OPTIONS, Message, TemplateOptions
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.turns.pair import Prompt
from orchestrator.sessions.turns.request_names import NAMELESS, RequestName

_NO_SETTINGS = GenerationSettings()


@dataclass(frozen=True, slots=True)
class NewSession:
    """A request to create a session. The chat template reads ``clock`` as the current time."""

    system: str | None = None
    settings: GenerationSettings = _NO_SETTINGS
    clock: datetime | None = None
    name: RequestName = NAMELESS
    caller: Principal = ANONYMOUS
    metadata: Mapping[str, str] = field(default_factory=dict)
    options: TemplateOptions = NO_OPTIONS


@dataclass(frozen=True, slots=True)
class Fork:
    """A request for a session that is what another was after a turn; None: after the last ended
    one.

    ``system`` takes the place of the other's system message; an empty one is none, and None leaves
    it. ``options`` take the place of the other's unless they are None.
    """

    after_turn: int | None = None
    system: str | None = None
    name: RequestName = NAMELESS
    options: TemplateOptions | None = None


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A request to start a turn that answers messages. Its ``settings`` are for this turn only."""

    said: tuple[Message, ...]
    """At least one message. The last is a user's or a tool's."""
    settings: GenerationSettings = _NO_SETTINGS
    name: RequestName = NAMELESS
    caller: Principal = ANONYMOUS
    prediction: str | array[int] | None = None
    note: str = ""
    """Text that the caller keeps with the turn."""

    @property
    def length(self) -> int:
        """Characters of the messages, and characters or tokens of the prediction."""
        return sum(message.own_length for message in self.said) + len(self.prediction or ())


@dataclass(frozen=True, slots=True)
class Generation:
    """A request for answers to a prompt, without a session to keep."""

    prompt: Prompt
    settings: GenerationSettings = _NO_SETTINGS
    choice_count: int = 1
    clock: datetime | None = None
    name: RequestName = NAMELESS
    caller: Principal = ANONYMOUS
    prediction: str | array[int] | None = None


@dataclass(frozen=True, slots=True)
class SessionsLoad:
    """The load of one process's sessions."""

    session_count: int
    running_count: int
    """Running turns."""
    waiting_count: int
    """Messages of chats that wait for the turns before them."""
    permit_count: int
    """Turns that may run."""
    queued_count: int
    """Turns that wait for an admission permit."""
    not_drafting_count: int
    """Running turns that leave their draft alone because drafting would not pay."""


class HasWaiting(Protocol):
    """A stream whose messages may have to wait."""

    @property
    def waiting_count(self) -> int:
        """Number of messages that wait."""
