"""Limits of a turn, the reasons for its end, and what its rounds commit. Pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from orchestrator.sessions.conversation.messages import Message
from slipstream.sampling.rule import Acceptance


class FinishReason(Enum):
    """The reason why a turn ended."""

    END_TOKEN = "end_token"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    CONTEXT_LENGTH = "context_length"
    CANCELLED = "cancelled"


ENDED_WITH_END_TOKEN = (FinishReason.END_TOKEN, FinishReason.STOP_TOKEN)
"""Finish reasons after which the last token may be one that the chat template writes itself."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """The limits that end a turn, beside the model's end tokens.

    The stop tokens are among the rule's end tokens too.
    """

    max_token_count: int
    context_length: int
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    """True if the text holds the stop string or stop token that ended the turn."""


class Commit(NamedTuple):
    """The tokens that one round committed, with the text that each of them made certain.

    ``finish_reason`` is set if the last of them ended the turn.
    """

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A turn that has ended, as its session needs it to be replayed. Without ``tokens`` it was
    undone."""

    shared_count: int
    """Number of prompt tokens that the session had before the turn."""
    prompt: Sequence[int]
    """The other tokens of the prompt."""
    said: Sequence[Message]
    """The messages that it answered; none if its prompt had none."""
    tokens: Sequence[int]
    """Generated tokens."""
    text: str
    """The whole answer."""
    acceptance: Acceptance
    ended_with_end_token: bool
    is_private: bool
    """True if it may not be collected."""
