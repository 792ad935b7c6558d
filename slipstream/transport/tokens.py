"""Bearer tokens as they travel: in the metadata of a call."""

from __future__ import annotations

import re

from slipstream.transport.reloading import FileError, Reloaded, read_bytes

TOKEN_KEY = "authorization"
LEAST_TOKEN_LENGTH = 16
"""Characters of the shortest token that services accept: of 16 random letters and digits none is
found by trying."""

_PRINTABLE = re.compile(r"[!-~]+")


def bearer(token: str) -> str:
    """What a call says under TOKEN_KEY. ValueError if a token cannot be said there."""
    if not _PRINTABLE.fullmatch(token):
        raise ValueError("a token is one or more printable ASCII characters without spaces")
    return f"Bearer {token}"


def bearer_of_file(flag: str, path: str) -> str:
    """As `bearer`, of what a file holds but for its last line break. FileError, if the token can be
    guessed too."""
    try:
        token = read_bytes(flag, path).decode("ascii").strip()
        said = bearer(token)
    except ValueError as error:
        raise FileError(
            f"{flag} {path} has to hold a token: one or more printable ASCII characters without spaces"
        ) from error
    if len(token) < LEAST_TOKEN_LENGTH:
        raise FileError(
            f"{flag} {path} has to hold a token of at least {LEAST_TOKEN_LENGTH} characters, and holds {len(token)}: make one "
            "with `openssl rand -hex 32`"
        )
    return said


def reloaded_bearer(flag: str, path: str) -> Reloaded[str]:
    """Of a file as it is: looked at for each call, so that an old token ends with its file.
    FileError."""
    return Reloaded([path], lambda: bearer_of_file(flag, path), look_seconds=0)
