"""The answers to one request while they are generated: one or several prompts, each with one or
several choices.

Tasks of their own read the replies. A caller that leaves can be noticed at any moment, and the end
of a turn at the orchestrator must not be interrupted by that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import TypeVar

from fastapi import Request

from gateway.errors import ApiError, error_of_peer
from gateway.exchange import current
from slipstream.client import AsyncClient, AsyncReply, Delta, PeerError, Result
from slipstream.errors import Code

log = logging.getLogger(__name__)

Value = TypeVar("Value")

_MAX_WAITING = 16
"""Deltas that wait for a slow reader. After that the orchestrator waits too."""
_DELETE_SECONDS = 10.0
"""Most seconds that a deletion takes: an orchestrator that hangs must not keep the gateway from
ending."""
_FINISH_REASONS = {
    "END_TOKEN": "stop",
    "STOP_STRING": "stop",
    "STOP_TOKEN": "stop",
    "MAX_TOKENS": "length",
    "CONTEXT_LENGTH": "length",
}


class Answers:
    """The answers to one request. Each has an index: those to the first prompt come first."""

    def __init__(
        self,
        caller: AsyncClient,
        replies: Sequence[AsyncReply],
        names: Mapping[str, str],
        *,
        keeps: bool = False,
        counts: bool = True,
    ) -> None:
        """Begin to read the replies. ``names`` has the fields that the request calls otherwise than
        most, for errors. With ``keeps`` the orchestrator keeps the answers.
        Without ``counts`` metrics leave their tokens out, which another request had counted."""
        self._caller = caller
        self._exchange = current()
        self._replies = replies
        self._names = names
        self._counts = counts
        self.keeps = keeps
        """True if the orchestrator keeps the answers after their end."""
        self._deltas: asyncio.Queue[tuple[int, Delta] | Exception | None] = asyncio.Queue(_MAX_WAITING)
        self._first: tuple[int, Delta] | None = None
        self._running = self._to_begin = len(replies)
        self._begun = asyncio.Event()
        self._refusal: Exception | None = None
        self._readers = [
            asyncio.create_task(self._read(reply, sum(len(before.results) for before in replies[:number])))
            for number, reply in enumerate(replies)
        ]

    @property
    def results(self) -> list[Result]:
        """The results by index, as far as they have come."""
        return [result for reply in self._replies for result in reply.results]

    async def begin(self) -> None:
        """Wait until the orchestrator has begun all answers. ApiError if it refuses one."""
        await self._begun.wait()
        if self._refusal is not None:
            raise self._error_of(self._refusal) from self._refusal

    async def wait_first(self) -> None:
        """Wait for the first delta of any answer. ApiError if one fails."""
        if self._first is None:
            self._first = await self._next()

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """Iterate over the deltas with the index of each one's answer. ApiError if one fails."""
        item, self._first = self._first, None
        while item is not None or (item := await self._next()) is not None:
            yield item
            item = None

    async def complete(self) -> list[Result]:
        """Return the results once all answers have ended. ApiError if one fails."""
        async for _ in self.deltas():
            pass
        return self.results

    async def end(self) -> None:
        """Cancel what still runs, and delete what the orchestrator has of the answers unless it
        keeps them: no other request can ask for it. Never raises."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        if self._counts:
            self._count_tokens()
        for result in () if self.keeps else self.results:
            if result.session_id:
                try:
                    await self._caller.delete_session(result.session_id, timeout=_DELETE_SECONDS)
                except PeerError as error:
                    if error.code is not Code.NOT_FOUND:
                        log.warning("a finished answer could not be deleted: %s", error)

    def _count_tokens(self) -> None:
        prompts = sum(reply.result.prompt_token_count for reply in self._replies)
        generated = sum(result.generated_token_count or len(result.token_ids) for result in self.results)
        self._exchange.metrics.count_tokens(prompts, generated)

    def _error_of(self, error: Exception) -> Exception:
        return error_of_peer(error, self._names) if isinstance(error, PeerError) else error

    async def _next(self) -> tuple[int, Delta] | None:
        while self._running:
            item = await self._deltas.get()
            if item is None:
                self._running -= 1
            elif isinstance(item, Exception):
                raise self._error_of(item) from item
            else:
                return item
        return None

    async def _read(self, reply: AsyncReply, first_index: int) -> None:
        try:
            async with reply, contextlib.aclosing(reply.deltas()) as deltas:
                await reply.begin()
                self._to_begin -= 1
                if not self._to_begin:
                    self._begun.set()
                async for delta in deltas:
                    self._exchange.note_token()
                    await self._deltas.put((first_index + delta.choice_index, delta))
        except Exception as error:
            self._refusal = self._refusal or error
            self._begun.set()
            await self._deltas.put(error)
        else:
            await self._deltas.put(None)


def finish_reason(result: Result) -> str | None:
    """Return OpenAI's name for the end of an answer; None while it runs. ApiError if another client
    has cancelled it."""
    if not result.finish_reason:
        return None
    if result.finish_reason not in _FINISH_REASONS:
        raise ApiError(499, "the answer was cancelled before its end", kind="cancelled_error", code="cancelled")
    return _FINISH_REASONS[result.finish_reason]


def stop_reason(result: Result) -> str | int | None:
    """Return vLLM's stop_reason: the stop text or the stop token's id that ended an answer; None if
    neither did."""
    if result.finish_reason == "STOP_TOKEN":
        return result.token_ids[-1]
    return result.stop_string


async def unless_left(request: Request, work: Awaitable[Value]) -> Value:
    """Return what ``work`` gives. ApiError if the caller leaves before."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "the caller has left", kind="cancelled_error")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
