"""Name the caller of a forwarded call, with a proof that the receiving process can check.

Processes of one store share a secret that the store keeps. The process that forwards a call names
the caller. It adds a keyed hash (HMAC-SHA256) of that name and of the address it calls. A
certificate or a token does not count here, because a client may have either. An overheard proof is
worth nothing at another address or for another caller. At the same address it can be replayed, as a
token can: TLS keeps it from being overheard.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from orchestrator.access.metadata import Metadata
from orchestrator.errors import UnauthenticatedError

_PRINCIPAL, _PROOF = "slipstream-principal-bin", "slipstream-proof"

_NOT_BELIEVED = (
    "the call names another caller, as only an orchestrator of the same store may: leave the slipstream- metadata out"
)

VOUCHING_METADATA = (_PRINCIPAL, _PROOF)
"""Metadata that a client may not send, and that no process forwards."""


class Vouching:
    """Names the callers of calls that this process forwards, and checks the names that other
    processes send."""

    def __init__(self, secret: bytes, own_names: Iterable[str]) -> None:
        """``secret`` is the store's. ``own_names`` are the addresses at which other processes call
        this one."""
        self._secret = secret
        self._own_names = tuple(own_names)

    def metadata(self, principal: str, to: str) -> Metadata:
        """Return the metadata of a call that is forwarded for a principal to the process at address
        ``to``."""
        return (_PRINCIPAL, principal.encode()), (_PROOF, self._proof(principal.encode(), to))

    def principal_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        """Return the principal that another process names for a call; None if none does.

        UnauthenticatedError if the proof is wrong. The call's other credentials belong to the
        process that forwarded it.
        """
        said = dict(metadata)
        if _PROOF not in said and _PRINCIPAL not in said:
            return None
        shown, principal = said.get(_PROOF), said.get(_PRINCIPAL)
        if not isinstance(shown, str) or not isinstance(principal, bytes):
            raise UnauthenticatedError(_NOT_BELIEVED, why="wrong")
        for name in self._own_names:
            if hmac.compare_digest(shown.encode(), self._proof(principal, name).encode()):
                return principal.decode()
        raise UnauthenticatedError(_NOT_BELIEVED, why="wrong")

    def _proof(self, principal: bytes, to: str) -> str:
        return hmac.new(self._secret, to.encode() + b"\n" + principal, hashlib.sha256).hexdigest()
