"""Headers of every response: the request's id, and the caller's limits in OpenAI's names."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders

from gateway.exchange import CallerLimits, Exchange

_REQUEST_ID = "x-request-id"
_GIVEN = re.compile(r"[!-~]{1,128}")
_MINUTE = 60.0


def request_id_of(headers: Headers) -> str:
    """Return the id that a caller, or a proxy in front, gives its request; else a random one."""
    given = headers.get(_REQUEST_ID, "")
    return given if _GIVEN.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def add_headers(headers: MutableHeaders, exchange: Exchange) -> None:
    """Add the headers of a response."""
    headers[_REQUEST_ID] = exchange.request_id
    if exchange.limits is not None:
        for name, value in _rate_limits(exchange.limits).items():
            headers[f"x-ratelimit-{name}"] = value


def _rate_limits(limits: CallerLimits) -> dict[str, str]:
    """Return what the limits leave the caller. Turns have no time of a reset: their limit is on
    those at once, so each turn that ends makes room."""
    found = {}
    if limits.max_turn_count:
        found["limit-requests"] = str(limits.max_turn_count)
        found["remaining-requests"] = str(max(0, limits.max_turn_count - limits.turn_count))
    if limits.tokens_per_minute:
        missing = max(0.0, limits.tokens_per_minute - limits.left_token_count)
        found["limit-tokens"] = f"{limits.tokens_per_minute:.0f}"
        found["remaining-tokens"] = f"{limits.left_token_count:.0f}"
        found["reset-tokens"] = duration(missing / limits.tokens_per_minute * _MINUTE)
    return found


def duration(seconds: float) -> str:
    """Return a time as OpenAI writes it: ``17ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"
