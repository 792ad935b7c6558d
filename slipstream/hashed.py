"""Names that callers choose, in a form that logs may have."""

from __future__ import annotations

import hashlib

_HASH_BYTES = 6


def hashed(name: str) -> str:
    """Return a hash of a name. The name itself may be long, have line breaks, or be a secret.
    Equal names have equal hashes."""
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).hexdigest()
