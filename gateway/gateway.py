"""The state that all requests share: the connection to the orchestrator, the served model, and the
work that goes on after an answer."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import Depends, Request

from gateway.errors import ApiError
from gateway.exchange import current
from gateway.hosts import Hosts
from gateway.reading import Reading, ReasoningParser
from gateway.tool_formats import TOOL_FORMATS, ToolCallParser
from gateway.tool_formats.of_template import parser_of_template
from slipstream.client import AsyncClient

log = logging.getLogger(__name__)

_BEARER = re.compile(r"[Bb]earer ([!-~]+)")
_KEY = re.compile(r"[!-~]+")
"""Anthropic's clients send the access token in a header of their own."""
_TRACE_CONTEXT = re.compile(r"[ -~]{1,512}")


@dataclass(frozen=True, slots=True)
class Model:
    """The model that the orchestrator serves, as callers name it."""

    name: str
    context_length: int
    fingerprint: str
    """Changes with the weights and with the rules by which tokens are chosen."""
    temperature: float
    """Temperature of requests that set none."""
    top_p: float
    """The top_p of requests that set none."""

    def check_name(self, name: str) -> None:
        """Refuse another model: ApiError."""
        if name != self.name:
            raise ApiError(
                404,
                f"the model {name!r} does not exist; this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )


def fingerprint_of(weights: str, sampling_version: int) -> str:
    """Return OpenAI's system_fingerprint: the same one, prompt, parameters and seed give the same
    text."""
    return f"{weights[:16]}-{sampling_version}"


class Gateway:
    """The state of the application."""

    def __init__(
        self,
        client: AsyncClient,
        model_name: str = "",
        reasoning_parser: ReasoningParser = "off",
        tool_call_parser: ToolCallParser = "auto",
        hosts: Hosts | None = None,
    ) -> None:
        """Serve by a client. The rest is as in the settings."""
        self._client = client
        self._hosts = hosts
        self._reasoning_parser = reasoning_parser
        self._tool_call_parser = tool_call_parser
        self._parsers: dict[str, str] = {}
        """Formats of calls that chat templates have told, by the model's fingerprint."""
        self._model_name = model_name
        self._tasks: set[asyncio.Task[None]] = set()

    async def caller_of(self, request: Request) -> AsyncClient:
        """Return a client that speaks for a request's caller: with the caller's token, and as a
        part of the caller's trace. ApiError if the token is malformed, or a website may have sent
        the request."""
        if self._hosts is not None:
            self._hosts.check(request.headers.get("host", ""))
        metadata = []
        if authorization := request.headers.get("authorization"):
            if not _BEARER.fullmatch(authorization):
                message = "the header authorization must be: Bearer TOKEN"
                raise ApiError(401, message, kind="authentication_error", code="invalid_api_key")
            metadata.append(("authorization", f"Bearer {authorization[7:]}"))
        elif key := request.headers.get("x-api-key"):
            if not _KEY.fullmatch(key):
                message = "the header x-api-key must be the access token"
                raise ApiError(401, message, kind="authentication_error", code="invalid_api_key")
            metadata.append(("authorization", f"Bearer {key}"))
        for name in ("traceparent", "tracestate"):
            if _TRACE_CONTEXT.fullmatch(value := request.headers.get(name, "")):
                metadata.append((name, value))
        return await self._client.for_caller(metadata=metadata)

    async def model(self, caller: AsyncClient) -> Model:
        """Return the model that is served. PeerError if the orchestrator does not say, or does not
        know the caller: it is asked for each request, so no caller learns what another may."""
        info = await caller.server_info()
        if info.HasField("caller_limits"):
            current().limits = info.caller_limits
        target = info.target
        fingerprint = fingerprint_of(target.weights_fingerprint, target.sampling_version)
        name = self._model_name or target.name.rstrip("/").rpartition("/")[2]
        defaults = target.sampling_defaults
        return Model(name, target.context_length, fingerprint, defaults.temperature, defaults.top_p)

    async def reading(self, caller: AsyncClient, model: Model, *, has_tools: bool) -> Reading:
        """Return how answers to chats are read. PeerError if the orchestrator does not tell how the
        model writes calls, which is asked if there are tools."""
        parser: str = self._tool_call_parser if has_tools else "off"
        if parser == "auto":
            if model.fingerprint not in self._parsers:
                self._parsers[model.fingerprint] = await parser_of_template(caller)
            parser = self._parsers[model.fingerprint]
        return Reading(self._reasoning_parser, TOOL_FORMATS.get(parser))

    def run_later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that no caller waits for. It must not raise."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for the work that no caller waits for."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def gateway_of(request: Request) -> Gateway:
    """Return the state of a request's application."""
    return cast(Gateway, request.app.state.gateway)


async def _caller_of(request: Request) -> AsyncClient:
    return await gateway_of(request).caller_of(request)


Caller = Annotated[AsyncClient, Depends(_caller_of)]
"""A route's parameter: the client that speaks for the caller."""
