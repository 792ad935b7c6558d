"""JSON web tokens (RFC 7519), checked by PyJWT against a set of keys (RFC 7517) in a file."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jwt

from orchestrator.access.access_file import WebTokens
from orchestrator.errors import AccessFileError, UnauthenticatedError
from slipstream.transport.reloading import FileError, Reloaded, refuse_writable

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms with two keys: a process that can check such a token cannot make one. "none" is not
accepted."""

_END_OF_TIME = 2.0**53
"""Seconds since the epoch from which a float is no longer exact."""

_LEEWAY_SECONDS = 10
"""Tolerance for clocks that differ."""


class WebTokenCheck:
    """Checks web tokens and returns their subjects."""

    def __init__(self, terms: WebTokens) -> None:
        """Read the keys. AccessFileError if they cannot be read."""
        self._terms = terms
        self._keys = Reloaded([str(terms.keys)], partial(_read_keys, terms.keys))

    @property
    def keys(self) -> jwt.PyJWKSet:
        """Return the current keys: the same object until the file changes."""
        return self._keys.current

    def subject_of(self, token: str) -> tuple[str, float]:
        """Return the token's subject and its expiry in seconds since the epoch.
        UnauthenticatedError if the token is invalid."""
        try:
            claims = jwt.decode(
                token,
                self._key_of(token),
                algorithms=_ALGORITHMS,
                audience=self._terms.audience,
                issuer=self._terms.issuer,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "sub", "aud", "iss"]},
            )
        except jwt.ExpiredSignatureError as error:
            raise UnauthenticatedError("the token has expired: get another one", why="expired") from error
        except UnauthenticatedError:
            raise
        except (jwt.PyJWTError, ValueError) as error:
            raise UnauthenticatedError(f"the token is invalid: {error}", why="wrong") from error
        except Exception as error:  # a token is its caller's: it may hold numbers and depths that no library expects
            raise UnauthenticatedError(
                "the token is invalid: it has values that cannot be read", why="wrong"
            ) from error
        return claims["sub"], _moment(claims, "exp") + _LEEWAY_SECONDS

    def _key_of(self, token: str) -> jwt.PyJWK:
        named = jwt.get_unverified_header(token).get("kid")
        for key in self.keys.keys:
            if key.key_id == named and key.algorithm_name in _ALGORITHMS:
                return key
        raise UnauthenticatedError("the token is signed by a key that is not known here", why="wrong")


def _moment(claims: dict[str, Any], name: str) -> float:
    """Return a claim as seconds since the epoch. UnauthenticatedError if it is no such number."""
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _END_OF_TIME:
        raise UnauthenticatedError(f"the token is invalid: {name} must be a number of seconds", why="wrong")
    return float(value)


def _read_keys(path: Path) -> jwt.PyJWKSet:
    try:
        refuse_writable("[jwt] keys", path)
        return jwt.PyJWKSet.from_dict(json.loads(path.read_text()))
    except FileError as error:
        raise AccessFileError(str(error)) from error
    except OSError as error:
        raise AccessFileError(f"[jwt] keys {path}: {error.strerror}") from error
    except (ValueError, jwt.PyJWTError, AttributeError, TypeError) as error:
        raise AccessFileError(f"[jwt] keys {path} is no set of JSON web keys: {error}") from error
