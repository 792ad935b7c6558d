"""The file of principals and their limits: TOML, read into checked values."""

from __future__ import annotations

import tomllib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from orchestrator.errors import AccessFileError
from orchestrator.sessions.admission.principal import Limits, Principal, Priority
from slipstream.bearer_tokens import TokenHash
from slipstream.transport.reloading import FileError, refuse_writable

_LONGEST_NAME = 256


def _hexadecimal(text: str) -> str:
    bytes.fromhex(text)
    return text


def _with_a_zone(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("must say its time zone: 2030-01-31T00:00:00Z")
    return moment.astimezone(UTC)


Hexadecimal = Annotated[str, Field(min_length=32), AfterValidator(_hexadecimal)]
Moment = Annotated[datetime, AfterValidator(_with_a_zone)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KeptToken(_Part):
    """A token that a principal may show until it ``expires``, as `slipstream token` prints it."""

    id: str = Field(min_length=1)
    salt: Hexadecimal
    sha256: Hexadecimal
    expires: Moment | None = None

    @property
    def hash(self) -> TokenHash:
        """The hash that a shown token is compared with."""
        return TokenHash(self.id, self.salt, self.sha256)


class Share(_Part):
    """Limits of a principal, and its priority. An absent limit does not apply."""

    max_session_count: int | None = Field(None, ge=1)
    max_running_turn_count: int | None = Field(None, ge=1)
    tokens_per_minute: float | None = Field(None, gt=0)
    priority: Literal["low", "normal", "high"] = "normal"
    operator: bool = False


class KnownPrincipal(Share):
    """A principal by name. The principal of a JSON web token is ``jwt:`` and its subject, that of a
    certificate ``cert:`` and its common name."""

    name: str = Field(min_length=1, max_length=_LONGEST_NAME)
    tokens: tuple[KeptToken, ...] = ()


class WebTokens(_Part):
    """JSON web tokens that are accepted: signed by a key of the ``keys`` file, for this audience,
    from this issuer."""

    keys: Path
    audience: str = Field(min_length=1)
    issuer: str = Field(min_length=1)


class AccessFile(_Part):
    """The content of an access file."""

    default: Share = Share()
    """Limits of principals that the file does not list, and of limits that a principal leaves
    out."""
    principals: tuple[KnownPrincipal, ...] = ()
    jwt: WebTokens | None = None
    certificates: bool = False
    """True if a client's certificate, which the listener has checked, names its principal."""
    orchestrators: tuple[str, ...] = ()
    """Common names of certificates that orchestrators use between themselves. Such a certificate
    belongs to no user."""

    @model_validator(mode="after")
    def _names_each_once(self) -> AccessFile:
        names = [principal.name for principal in self.principals]
        ids = [token.id for principal in self.principals for token in principal.tokens]
        for kind, found in (("principal", names), ("token", ids)):
            twice = {each for each, count in Counter(found).items() if count > 1}
            if twice:
                raise ValueError(f"{kind} {min(twice)!r} is there more than once")
        if not ids and self.jwt is None and not self.certificates:
            raise ValueError(
                "no caller could be identified: add a principal with tokens, [jwt], or certificates = true"
            )
        return self

    def principal(self, name: str) -> Principal:
        """Return the named principal with what the file allows it."""
        known = next((known for known in self.principals if known.name == name), self.default)
        said = known.model_fields_set & Share.model_fields.keys()
        share = self.default.model_copy(update={field: getattr(known, field) for field in said})
        limits = Limits(share.max_session_count, share.max_running_turn_count, share.tokens_per_minute)
        return Principal(name, limits, Priority[share.priority.upper()], share.operator)


def read_access_file(path: Path) -> AccessFile:
    """Read an access file. AccessFileError, in one line, if it is missing or invalid."""
    try:
        refuse_writable("--access", path)
        with path.open("rb") as file:
            found = AccessFile.model_validate(tomllib.load(file))
    except OSError as error:
        raise AccessFileError(f"--access {path}: {error.strerror}") from error
    except FileError as error:
        raise AccessFileError(str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AccessFileError(f"--access {path} is no TOML: {error}") from error
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}" for fault in error.errors())
        raise AccessFileError(f"--access {path}: {faults}") from error
    if found.jwt is not None:  # beside the file, unless it says otherwise
        keys = found.jwt.model_copy(update={"keys": path.parent / found.jwt.keys})
        found = found.model_copy(update={"jwt": keys})
    return found
