"""Bearer tokens: drawn at random, shown once, stored as salted hashes. Standard library only.

A token is ``<id>.<secret>``. The id says which hash to compare with. The secret has 256 random
bits, so one SHA-256 is as hard to invert as a slow hash would be, and a call costs microseconds.
Tokens are therefore drawn here, never chosen by a person.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

_ID_BYTES, _SALT_BYTES, _SECRET_BYTES = 6, 16, 32


@dataclass(frozen=True, slots=True)
class TokenHash:
    """The stored part of a token."""

    id: str
    salt: str
    """Hexadecimal."""
    sha256: str
    """Hash of salt and secret, hexadecimal."""

    def fits(self, token: str) -> bool:
        """Return whether this is the hash of a token. The time it takes tells nothing about the
        secret."""
        return hmac.compare_digest(_hashed(bytes.fromhex(self.salt), token.partition(".")[2]), self.sha256)


def make_token() -> tuple[str, TokenHash]:
    """Draw a token. Return the token, to be shown to its user, and the hash to store."""
    name, salt, secret = (
        secrets.token_hex(_ID_BYTES),
        secrets.token_bytes(_SALT_BYTES),
        secrets.token_urlsafe(_SECRET_BYTES),
    )
    return f"{name}.{secret}", TokenHash(name, salt.hex(), _hashed(salt, secret))


def id_of(token: str) -> str:
    """Return the id of the hash that a token is compared with."""
    return token.partition(".")[0]


def _hashed(salt: bytes, secret: str) -> str:
    return hashlib.sha256(salt + secret.encode()).hexdigest()
