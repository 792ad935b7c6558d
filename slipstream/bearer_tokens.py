"""Bearer tokens: made at random, shown once, kept as salted hashes. Standard library alone.

A token is ``<id>.<secret>``: the id says which hash to compare with. Its secret has 256 bits of
chance, so one SHA-256 is as hard to turn round as a slow hash would be, and a call costs
microseconds. That is why tokens are made here and not thought up.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

_ID_BYTES, _SALT_BYTES, _SECRET_BYTES = 6, 16, 32


@dataclass(frozen=True, slots=True)
class TokenHash:
    """What is kept of a token."""

    id: str
    salt: str
    """Hexadecimal."""
    sha256: str
    """Of salt and secret, hexadecimal."""

    def fits(self, token: str) -> bool:
        """Whether this is that token, in a time that says nothing of how far it is."""
        return hmac.compare_digest(_hashed(bytes.fromhex(self.salt), token.partition(".")[2]), self.sha256)


def make_token() -> tuple[str, TokenHash]:
    """A new token, to be shown to whoever is to have it, and what is to be kept of it."""
    name, salt, secret = (
        secrets.token_hex(_ID_BYTES),
        secrets.token_bytes(_SALT_BYTES),
        secrets.token_urlsafe(_SECRET_BYTES),
    )
    return f"{name}.{secret}", TokenHash(name, salt.hex(), _hashed(salt, secret))


def id_of(token: str) -> str:
    """Which hash a token is to be compared with."""
    return token.partition(".")[0]


def _hashed(salt: bytes, secret: str) -> str:
    return hashlib.sha256(salt + secret.encode()).hexdigest()
