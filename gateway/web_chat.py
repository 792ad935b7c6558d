"""The web chat at ``/``: files that `make page` builds from ``gateway/page``. They load nothing
from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, JSONResponse, Response

from gateway.errors import ApiError
from slipstream.version import VERSION

router = APIRouter(include_in_schema=False)

STATIC = Path(__file__).parent / "static"
_MEDIA_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain",
}
FILES = {file.name: _MEDIA_TYPES[file.suffix] for file in (STATIC / "page").iterdir()}
"""The files beside index.html, with their media types."""
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # names stay the same; the ETag tells when a file has changed
}


@router.get("/")
async def page(request: Request) -> Response:
    """Return the web chat to a browser, and to other clients where the API is."""
    if "text/html" not in request.headers.get("accept", ""):
        body = {"name": "Slipstream", "version": VERSION, "openapi": "/openapi.json", "models": "/v1/models"}
        return JSONResponse(body, headers={"vary": "accept"})
    return FileResponse(STATIC / "index.html", media_type="text/html", headers={**_HEADERS, "vary": "accept"})


@router.get("/page/{name}")
async def page_file(name: str) -> Response:
    """Return a file of the web chat."""
    if name not in FILES:
        raise ApiError(404, f"the web chat has no file {name!r}", kind="not_found_error")
    return FileResponse(STATIC / "page" / name, media_type=FILES[name], headers=_HEADERS)
