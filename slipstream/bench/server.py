"""The interface of a server under load, over any protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from slipstream.bench.prompts import Conversation
from slipstream.bench.records import Acceptance, Record

Api = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class Asked:
    """Settings of every request of a load."""

    api: Api = "chat"
    model: str = ""
    """Name of the model, over HTTP; empty: the first that the server lists."""
    temperature: float | None = None
    """0 is greedy; None is the server's default."""
    seed: int = 0
    ignore_end: bool = False
    """Generate all tokens of an answer's length, past the model's end token."""
    draft_length: int | None = None
    """Draft tokens a round; 0 is off; None is the server's default."""
    timeout: float = 600.0
    """Most seconds from a request to the end of its answer."""


class BenchServer(Protocol):
    """A server under load."""

    name: str
    """The server's address, as the user wrote it."""

    async def describe(self) -> str:
        """Reach the server and return its model's name. SlipstreamError if it cannot be reached."""

    async def count_tokens(self, text: str) -> int | None:
        """Return the number of a text's tokens, None if the server cannot say."""

    def hold(self, conversation: Conversation, intended: float) -> AsyncIterator[Record]:
        """Hold a conversation, the first prompt of which should have been sent at ``intended``.
        Yields a record for each prompt. One that failed is the last."""

    async def counters(self) -> Acceptance | None:
        """Return the server's counters of draft tokens so far, None if it shows none."""

    async def close(self) -> None:
        """Close all connections."""
