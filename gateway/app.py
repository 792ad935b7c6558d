"""The application: its endpoints, its errors and its connection to the orchestrator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from gateway import (
    chat_completions,
    completions,
    conversations,
    messages,
    metrics,
    models,
    probes,
    responses,
    sessions,
    tokenization,
    web_chat,
)
from gateway.edge import Edge
from gateway.errors import ErrorBody, install_handlers
from gateway.gateway import Gateway
from gateway.hosts import Hosts
from gateway.limits import BodyLimit
from gateway.metrics import Metrics
from gateway.openapi import Application
from gateway.settings import GatewaySettings
from slipstream.client import AsyncClient
from slipstream.version import VERSION

ENDPOINTS = (
    models,
    chat_completions,
    completions,
    responses,
    conversations,
    messages,
    tokenization,
    sessions,
    probes,
    metrics,
    web_chat,
)
"""A module for each family of endpoints, with its ``router``."""


def create_app(settings: GatewaySettings) -> FastAPI:
    """Return the application. FileError, PlaintextError if the settings are wrong."""
    credentials = settings.credentials()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncClient(settings.orchestrator, credentials=credentials) as client:
            app.state.gateway = Gateway(
                client,
                settings.model_name,
                settings.reasoning_parser,
                settings.tool_call_parser,
                Hosts(settings.address, filter(None, settings.allowed_hosts.replace(" ", "").split(","))),
            )
            yield
            await app.state.gateway.finish()

    app = Application(
        title="Slipstream",
        summary="OpenAI's API over a Slipstream orchestrator",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,  # its page takes scripts from elsewhere
        redoc_url=None,
        responses={status: {"model": ErrorBody, "description": "an error"} for status in ("4XX", "5XX")},
    )
    for endpoint in ENDPOINTS:
        app.include_router(endpoint.router)
    install_handlers(app, [route for endpoint in ENDPOINTS for route in endpoint.router.routes])
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_mib * 2**20, idle_seconds=settings.idle_seconds)
    app.add_middleware(Edge, metrics=Metrics())
    return app
