"""OpenAI's Responses API. A response is the last turn of a session of its own, or a turn of its
conversation's session. The gateway keeps nothing of it."""

from __future__ import annotations

from gateway.responses.router import router

__all__ = ["router"]
