"""How one orchestrator process tells another on whose behalf it passes a call on, and why the other believes it.

Processes of one store share a secret that the store keeps. The one that passes a call on names the caller, and shows a keyed
hash (HMAC-SHA256) of that name and of the process it speaks to. A certificate, token or address does not count here: a client
may have any of them. What was overheard says nothing to another process, nor of another caller.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from orchestrator.access.metadata import Metadata

_PRINCIPAL, _PROOF = "slipstream-principal-bin", "slipstream-proof"

VOUCHING_METADATA = (_PRINCIPAL, _PROOF)
"""What no client may say, and no process passes on."""


class Vouching:
    """One process's word for the callers of what it passes on, and its ear for the word of others."""

    def __init__(self, secret: bytes, own_names: Iterable[str]) -> None:
        """``secret`` is the store's; ``own_names`` are those by which other processes speak to this one."""
        self._secret = secret
        self._own_names = tuple(own_names)

    def metadata(self, principal: str, to: str) -> Metadata:
        """Return what a call takes along that is passed on for a principal to the process with this name."""
        return (_PRINCIPAL, principal.encode()), (_PROOF, self._proof(principal.encode(), to))

    def principal_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        """Return the principal that another process names for a call; None if none does, or it cannot be believed."""
        said = dict(metadata)
        shown, principal = said.get(_PROOF), said.get(_PRINCIPAL)
        if not isinstance(shown, str) or not isinstance(principal, bytes):
            return None
        for name in self._own_names:
            if hmac.compare_digest(shown.encode(), self._proof(principal, name).encode()):
                return principal.decode()
        return None

    def _proof(self, principal: bytes, to: str) -> str:
        return hmac.new(self._secret, to.encode() + b"\n" + principal, hashlib.sha256).hexdigest()
