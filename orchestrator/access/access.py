"""The principal of every call. Without an access file all callers are one principal."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from orchestrator.access.access_file import AccessFile, KeptToken, read_access_file
from orchestrator.access.metadata import Metadata
from orchestrator.access.vouching import Vouching
from orchestrator.errors import AccessFileError, OperatorsOnlyError, UnauthenticatedError
from orchestrator.sessions.admission.principal import ANONYMOUS, Principal
from slipstream.bearer_tokens import id_of
from slipstream.transport.reloading import Reloaded

if TYPE_CHECKING:
    from orchestrator.access.web_tokens import WebTokenCheck

Context = grpc.aio.ServicerContext[Any, Any]

_AUTHORIZATION, _SCHEME = "authorization", "bearer"
_LONGEST_NAME = 200
_MOST_KNOWN = 4096
"""Tokens whose principal is cached. A web token takes 50 us to check if RSA signed it, and 370 us
if a curve did."""

_WEB_TOKEN_DOTS = 2
_NO_USER = "this certificate belongs to an orchestrator, not to a caller: show a certificate of your own, or a token"
_WHAT_TO_SHOW = "this orchestrator identifies its callers: send `authorization: Bearer TOKEN` with each call"


class Access:
    """Access rules from a file that may change."""

    def __init__(self, path: Path, vouching: Vouching | None = None, clock: Callable[[], float] = time.time) -> None:
        """``vouching`` names the caller of a call that another process forwards. AccessFileError if
        the file cannot be read."""
        self._vouching = vouching
        self._clock = clock
        self._rules = Reloaded([str(path)], partial(_Rules, path))
        self._known: OrderedDict[str, tuple[object, str, float]] = OrderedDict()
        """Cache by token: the rules and keys that it was checked with, its principal's name, and
        its expiry."""

    def principal_of(self, context: Context) -> Principal:
        """Return the principal that makes a call, or for which another process forwards it.
        UnauthenticatedError if there is none."""
        rules, shown = self._rules.current, self.principal_in(context.invocation_metadata() or ())
        if shown is not None:
            return shown
        certified = next(iter(context.auth_context().get("x509_common_name", ())), b"")
        if certified:
            name = _checked(certified.decode(errors="replace"))
            if name in rules.file.orchestrators:
                raise UnauthenticatedError(_NO_USER, why="wrong")
            return rules.principal("cert:" + name)
        raise UnauthenticatedError(_WHAT_TO_SHOW, why="missing")

    def operator_of(self, context: Context, why: str) -> None:
        """Raise OperatorsOnlyError, which says ``why``, unless an operator makes the call.
        UnauthenticatedError."""
        if not self.principal_of(context).operator:
            raise OperatorsOnlyError(why)

    def principal_in(self, metadata: Iterable[tuple[str, str | bytes]]) -> Principal | None:
        """Return the principal that a call's metadata names; None if its certificate must name it.
        UnauthenticatedError if it is invalid."""
        rules, metadata = self._rules.current, tuple(metadata)
        vouched = None if self._vouching is None else self._vouching.principal_of(metadata)
        if vouched is not None:
            return rules.principal(vouched)
        shown = [str(value) for key, value in metadata if key == _AUTHORIZATION]
        if len(shown) > 1:
            raise UnauthenticatedError("send one authorization, not several", why="wrong")
        if shown:
            return rules.principal(self._name_of(rules, shown[0]))
        if rules.file.certificates:
            return None
        raise UnauthenticatedError(_WHAT_TO_SHOW, why="missing")

    def forwarding_metadata(self, context: Context, to: str) -> Metadata:
        """Return the metadata that names the caller when a call is forwarded to the process at
        address ``to``. UnauthenticatedError if the caller is unknown."""
        return () if self._vouching is None else self._vouching.metadata(self.principal_of(context).name, to)

    def _name_of(self, rules: _Rules, authorization: str) -> str:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != _SCHEME or not token:
            raise UnauthenticatedError(_WHAT_TO_SHOW, why="wrong")
        known, version = self._known.get(token), rules.version
        if known is None or known[0] is not version:
            known = (version, *rules.check(token))
            self._known[token] = known
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        _, name, expires = known
        if expires <= self._clock():
            raise UnauthenticatedError("the token has expired: get another one", why="expired")
        return name


class OpenAccess:
    """Access for every caller, where no file says who may ask."""

    def principal_of(self, context: Context) -> Principal:
        """Return the anonymous principal."""
        return ANONYMOUS

    def operator_of(self, context: Context, why: str) -> None:
        """Let every caller do what operators may."""

    def forwarding_metadata(self, context: Context, to: str) -> Metadata:
        """Return no metadata: a forwarded call needs no name."""
        return ()


class _Rules:
    """The rules of one reading of the file."""

    def __init__(self, path: Path) -> None:
        self.file: AccessFile = read_access_file(path)
        self._tokens: dict[str, tuple[str, KeptToken]] = {
            token.id: (principal.name, token) for principal in self.file.principals for token in principal.tokens
        }
        self._web_tokens: WebTokenCheck | None = None
        if self.file.jwt is not None:
            try:
                from orchestrator.access.web_tokens import WebTokenCheck
            except ImportError as error:
                what = "[jwt] needs packages that are not installed: pip install 'slipstream-llm[jwt]'"
                raise AccessFileError(f"--access {path}: {what}") from error
            self._web_tokens = WebTokenCheck(self.file.jwt)
        self._named = {known.name: self.file.principal(known.name) for known in self.file.principals}

    @property
    def version(self) -> object:
        """Return an object that changes as soon as an earlier check may no longer hold."""
        return self if self._web_tokens is None else self._web_tokens.keys

    def principal(self, name: str) -> Principal:
        """Return the named principal with what the file allows it."""
        return self._named.get(name) or self.file.principal(name)

    def check(self, token: str) -> tuple[str, float]:
        """Return the principal's name that a token belongs to, and its expiry in seconds since the
        epoch. Raises UnauthenticatedError for an unknown token."""
        name, kept = self._tokens.get(id_of(token), ("", None))
        if kept is not None and kept.hash.fits(token):
            return name, float("inf") if kept.expires is None else kept.expires.timestamp()
        if self._web_tokens is None or token.count(".") != _WEB_TOKEN_DOTS:
            raise UnauthenticatedError("the token is not known here: it may have been withdrawn", why="wrong")
        subject, expires = self._web_tokens.subject_of(token)
        return f"jwt:{_checked(subject)}", expires


def _checked(name: str) -> str:
    """Return a name that comes from outside. UnauthenticatedError if it cannot be a name."""
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise UnauthenticatedError(
            "the token or certificate names a principal that cannot be used as a name", why="wrong"
        )
    return name
