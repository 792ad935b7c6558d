"""The end of a call that is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.access.access import Context
from orchestrator.errors import SessionMovedError
from slipstream.rpc.status import abort


@asynccontextmanager
async def refusals(context: Context) -> AsyncIterator[None]:
    """End the call with the status of an error that is raised inside. A SessionMovedError goes
    on to the interceptor that forwards calls."""
    try:
        yield
    except SessionMovedError:
        raise
    except Exception as error:
        await abort(context, error)
