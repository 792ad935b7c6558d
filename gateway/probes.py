"""GET /health and /version."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from gateway.bodies import HealthBody, VersionBody, described
from gateway.errors import ApiError
from gateway.gateway import Caller
from slipstream.client import PeerError
from slipstream.errors import Code
from slipstream.version import VERSION

router = APIRouter()

_PROBE_SECONDS = 5.0


@router.get("/health", responses=described(HealthBody))
async def health(request: Request, caller: Caller) -> Response:
    """Answer 200 if the orchestrator answers and reaches its verifier, else 503. No token is
    needed: then only the orchestrator's answer counts."""
    try:
        ready = (await caller.server_info(timeout=_PROBE_SECONDS)).verifier_reachable
    except PeerError as error:
        ready = error.code is Code.UNAUTHENTICATED
    if not ready:
        raise ApiError(503, "no orchestrator with a verifier can be reached", kind="unavailable_error")
    return JSONResponse({"status": "ok"})


@router.get("/version", responses=described(VersionBody))
async def version() -> dict[str, str]:
    """Return Slipstream's version."""
    return {"version": VERSION}
