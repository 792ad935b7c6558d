"""Ids of responses, conversations and items. Each names a session, so that every gateway finds what
another one has begun."""

from __future__ import annotations

import re
from typing import NamedTuple

_RESPONSE = re.compile(r"resp_([0-9a-f]{16})_([1-9][0-9]{0,8})")
_CONVERSATION = re.compile(r"conv_([0-9a-f]{16})")


class TurnId(NamedTuple):
    """A turn of a session: a response."""

    session_id: str
    turn: int

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return f"resp_{self.session_id}_{self.turn}"

    def item_id(self, kind: str, index: int) -> str:
        """Return the id of one of the response's items. ``kind`` is OpenAI's prefix."""
        return f"{kind}_{self.session_id}_{self.turn}_{index}"


def turn_of(response_id: str) -> TurnId | None:
    """Return the turn that a response is; None if no response has this id."""
    found = _RESPONSE.fullmatch(response_id)
    return None if found is None else TurnId(found[1], int(found[2]))


def conversation_id(session_id: str) -> str:
    """Return the id of the conversation that a session is."""
    return f"conv_{session_id}"


def session_of(conversation: str) -> str | None:
    """Return the session that a conversation is; None if no conversation has this id."""
    found = _CONVERSATION.fullmatch(conversation)
    return None if found is None else found[1]
