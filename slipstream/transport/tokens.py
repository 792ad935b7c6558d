"""Bearer tokens in the metadata of a call."""

from __future__ import annotations

import re

from slipstream.transport.reloading import FileError, Reloaded, read_bytes

TOKEN_KEY = "authorization"
LEAST_TOKEN_LENGTH = 16
"""Characters of the shortest token that services accept. 16 random letters and digits cannot be
guessed."""

_PRINTABLE = re.compile(r"[!-~]+")


def bearer(token: str) -> str:
    """Return the value of TOKEN_KEY for a token. ValueError if metadata cannot hold the token."""
    if not _PRINTABLE.fullmatch(token):
        raise ValueError("a token is one or more printable ASCII characters without spaces")
    return f"Bearer {token}"


def bearer_of_file(flag: str, path: str, least_length: int = LEAST_TOKEN_LENGTH) -> str:
    """Return the value of TOKEN_KEY for the token in a file. FileError, also if the token is too
    short."""
    try:
        token = read_bytes(flag, path).decode("ascii").strip()
        said = bearer(token)
    except ValueError as error:
        raise FileError(
            f"{flag} {path} has to hold a token: one or more printable ASCII characters without spaces"
        ) from error
    if len(token) < least_length:
        raise FileError(
            f"{flag} {path} has to hold a token of at least {least_length} characters, and holds {len(token)}: make one "
            "with `openssl rand -hex 32`"
        )
    return said


def reloaded_bearer(flag: str, path: str, *, least_length: int = LEAST_TOKEN_LENGTH) -> Reloaded[str]:
    """Return the bearer value of a token file, which is checked for changes at every call. An old
    token is invalid as soon as the file changes. ``least_length``: 1 for a token that another
    server chooses. FileError."""
    return Reloaded([path], lambda: bearer_of_file(flag, path, least_length), look_seconds=0)
