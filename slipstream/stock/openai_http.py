"""Requests to a stock engine's HTTP server. Failures become the errors of the protocol."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.stock.protocol import EngineLostError, EngineRefusedError
from slipstream.transport.http_client import HttpClient, NotJsonError, Origin, RequestError, Response
from slipstream.transport.reloading import Reloaded
from slipstream.transport.sse import EventParser

_FIRST_FAILURE = 500
"""Least status that says that the server fails, and not the request."""
_BUSY = (408, 425, 429)
_UNAUTHORIZED = (401, 403)
_LONGEST_SHOWN = 300


def origin_of(address: str) -> Origin:
    """Read a server's address. InvalidFieldsError names --engine-address and what would be
    right."""
    try:
        if not address.startswith(("http://", "https://")):
            raise ValueError(f"must be an http:// or https:// address, but is {address!r}")
        _refuse_secrets(address)
        origin = Origin.parse(address, ssl.create_default_context())
        origin.host.encode("idna")  # a name that no resolver takes is a ValueError too
    except ValueError as error:
        raise InvalidFieldsError([FieldViolation("--engine-address", str(error))]) from error
    return origin


def _refuse_secrets(address: str) -> None:
    """Raise ValueError, which does not show the address, if more than a place is in it: logs and
    lists of processes show addresses."""
    parts = urlsplit(address)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "must be a host, a port and a path alone, without user, password or query: "
            "an API key belongs into the file of --engine-token-file"
        )


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Inside, an answer of another form than expected becomes an EngineRefusedError. ``what`` names
    the answer."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise EngineRefusedError(f"{what} cannot be read: {error!r}") from error


def is_failure(status: int) -> bool:
    """Return whether a status says that the server fails or is busy, and not that a request is
    wrong."""
    return status >= _FIRST_FAILURE or status in _BUSY


class EngineHttp:
    """JSON requests to one server, each with a deadline."""

    def __init__(self, name: str, origin: Origin, *, bearer: Reloaded[str] | None, timeout_seconds: float) -> None:
        """``name`` is the engine's, for messages. ``bearer`` is the authorization header."""
        self._name = name
        self._where = f"{origin.host}:{origin.port}"
        self._bearer = bearer
        self._timeout = timeout_seconds
        self._client = HttpClient(origin, repeats=False)

    def lost_count(self) -> int:
        """Return how many kept connections the server has closed so far."""
        return self._client.lost_count()

    async def close(self) -> None:
        """Close the connections that are kept."""
        self._client.close()
        await asyncio.sleep(0)  # the loop closes them in its next round

    async def json(self, path: str, body: object | None = None) -> dict[str, Any]:
        """Return a whole answer, which is an object. ``body``: None for GET. EngineLostError or
        EngineRefusedError."""
        with self._errors():
            async with asyncio.timeout(self._timeout), AsyncExitStack() as stack:
                answer = await (await self._answer(stack, path, body)).json()
        if not isinstance(answer, dict):
            raise EngineRefusedError(f"{self._name}'s answer cannot be read: {path} has to give an object")
        return answer

    async def text(self, path: str) -> str:
        """Return a whole answer as text. EngineLostError or EngineRefusedError."""
        with self._errors():
            async with asyncio.timeout(self._timeout), AsyncExitStack() as stack:
                response = await self._answer(stack, path, None)
                return b"".join([part async for part in response.parts()]).decode(errors="replace")

    async def events(self, path: str, body: object) -> AsyncGenerator[str]:
        """Yield the data of each server-sent event, up to "[DONE]". Each event has the whole
        timeout. EngineLostError or EngineRefusedError."""
        parser = EventParser()
        async with AsyncExitStack() as stack:
            with self._errors():
                async with asyncio.timeout(self._timeout):
                    response = await self._answer(stack, path, body)
            parts = response.parts()
            while (part := await self._next(parts)) is not None:
                for data in parser.feed(part):
                    if data == "[DONE]":
                        return
                    yield data

    async def _next(self, parts: AsyncIterator[bytes]) -> bytes | None:
        with self._errors():
            async with asyncio.timeout(self._timeout):
                return await anext(parts, None)

    async def _answer(self, stack: AsyncExitStack, path: str, body: object | None) -> Response:
        self._client.headers = {} if self._bearer is None else {"authorization": self._bearer.current}
        response = await stack.enter_async_context(self._client.request(f"{self._client.origin.path}{path}", body))
        if response.status != 200:
            raise self._refusal(path, response.status, await response.error())
        return response

    def _refusal(self, path: str, status: int, error: RequestError) -> Exception:
        more = f": {shown(error.message)}" if error.message else ""
        said = f"{self._client.origin.path}{path}: {error}{more}"
        if is_failure(status):
            return EngineLostError(f"{self._name} at {self._where} fails at {said}")
        flag = " (--engine-token-file holds its API key)" if status in _UNAUTHORIZED else ""
        return EngineRefusedError(f"{self._name} at {self._where} refuses {said}{flag}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise EngineLostError(
                f"{self._name} at {self._where} has not answered for {self._timeout:g} s (--engine-timeout-seconds)"
            ) from error
        except NotJsonError as error:
            raise EngineRefusedError(f"{self._name} at {self._where} has given an answer that is no JSON") from error
        except RequestError as error:
            more = f": {error.message}" if error.message else ""
            raise EngineLostError(f"{self._name} at {self._where} cannot be reached: {error}{more}") from error


def shown(message: str) -> str:
    """Return the beginning of what a server says, on one line, and without characters that no
    status can hold."""
    return " ".join(message.split())[:_LONGEST_SHOWN].encode("utf-8", "replace").decode()
