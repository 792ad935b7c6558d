"""Anthropic's Messages API, which coding tools speak. The answers are those of chat completions."""

from __future__ import annotations

from gateway.messages.router import router

__all__ = ["router"]
