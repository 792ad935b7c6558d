"""Both clients through one shape, so that one test proves a thing of both."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

from slipstream.client import AsyncClient, AsyncReply, AsyncSession, Client

KINDS = ("blocking", "asyncio")


class OnLoop:
    """An object of the asyncio client that looks like the blocking one's."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._blocking(value) if inspect.ismethod(value) else value

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self._inner.__aiter__())

    def __enter__(self) -> OnLoop:
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._inner.__aexit__(*error))

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            result = method(*arguments, **named)
            return await result if inspect.isawaitable(result) else result

        def run(*arguments: Any, **named: Any) -> Any:
            result = self._run(call(*arguments, **named))
            if isinstance(result, AsyncClient | AsyncReply | AsyncSession):
                return OnLoop(result, self._loop)
            return self._iterate(result) if inspect.isasyncgen(result) else result

        return run

    def _iterate(self, generator: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(generator, self)  # self: the end

        async def close() -> None:
            await generator.aclose()

        try:
            while (item := self._run(following())) is not self:
                yield item
        finally:
            if not self._loop.is_closed():  # else the client was closed with all of its replies
                closing = asyncio.run_coroutine_threadsafe(close(), self._loop)
                if asyncio._get_running_loop() is not self._loop:  # where a collector of garbage may have come upon us
                    closing.result()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextmanager
def connected(kind: str, address: str, **options: Any) -> Iterator[Client]:
    """A client of either kind; behind it no task may be left on its loop."""
    if kind == "blocking":
        with Client(address, **options) as client:
            yield client
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="asyncio-client")
    thread.start()

    async def connect() -> AsyncClient:
        return AsyncClient(address, **options)

    try:
        inner = asyncio.run_coroutine_threadsafe(connect(), loop).result()
        with OnLoop(inner, loop) as alike:
            yield cast(Any, alike)
        assert asyncio.run_coroutine_threadsafe(tasks_left(), loop).result() == []
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def tasks_left() -> list[str]:
    """Return the tasks that stay on the loop. grpc's own calls take turns of the loop to end."""
    deadline = time.monotonic() + 60
    while (left := asyncio.all_tasks() - {asyncio.current_task()}) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return [str(task) for task in left]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
