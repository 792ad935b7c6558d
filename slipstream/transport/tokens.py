"""Bearer tokens as they travel: in the metadata of a call."""

from __future__ import annotations

import re

from slipstream.transport.watched import FileError, Watched, read_bytes

TOKEN_KEY = "authorization"
_PRINTABLE = re.compile(r"[!-~]+")


def bearer(token: str) -> str:
    """What a call says under TOKEN_KEY. ValueError if a token cannot be said there."""
    if not _PRINTABLE.fullmatch(token):
        raise ValueError("a token is one or more printable ASCII characters without spaces")
    return f"Bearer {token}"


def bearer_of_file(flag: str, path: str) -> str:
    """As `bearer`, of what a file holds but for its last line break. FileError."""
    try:
        return bearer(read_bytes(flag, path).decode("ascii").strip())
    except ValueError as error:
        raise FileError(
            f"{flag} {path} has to hold a token: one or more printable ASCII characters without spaces"
        ) from error


def watched_bearer(flag: str, path: str) -> Watched[str]:
    """Of a file as it is: looked at for each call, so that an old token ends with its file. FileError."""
    return Watched([path], lambda: bearer_of_file(flag, path), look_seconds=0)
