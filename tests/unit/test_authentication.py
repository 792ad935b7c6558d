"""Whose a call is: by a token, a certificate, or what another process says of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from orchestrator.access import access as door
from orchestrator.access.access import Access
from orchestrator.access.access_file import read_access_file
from orchestrator.access.vouching import Vouching
from orchestrator.errors import AccessFileError, UnauthenticatedError
from slipstream.cli.token import token_and_entry
from tests.unit.test_access_pieces import write_keys

CERTIFICATES = 'certificates = true\norchestrators = ["orchestrator"]\n'


class Call:
    """What `Access` looks at in a call."""

    def __init__(self, *authorizations: str, certificate: str = "", said: Any = ()) -> None:
        named = tuple(("authorization", each) for each in authorizations)
        self._metadata = None if said is None else (*named, *said)
        """grpc has None where a call has no metadata."""
        self._certified = {"x509_common_name": [certificate.encode()]} if certificate else {}

    def invocation_metadata(self) -> Any:
        return self._metadata

    def auth_context(self) -> Any:
        return self._certified


def access_of(folder: Path, content: str, vouching: Vouching | None = None) -> Access:
    (folder / "access.toml").write_text(content)
    return Access(folder / "access.toml", vouching, clock=lambda: 1000.0)


def refused(access: Access, call: Call) -> UnauthenticatedError:
    with pytest.raises(UnauthenticatedError) as error:
        access.principal_of(call)
    return error.value


def name_of(access: Access, call: Call) -> str:
    return access.principal_of(call).name


def test_without_a_token_the_certificate_names_the_caller(tmp_path: Path) -> None:
    token, entry = token_and_entry("shop", 3)
    access = access_of(tmp_path, CERTIFICATES + entry)
    assert name_of(access, Call(certificate="alice")) == "cert:alice"
    assert name_of(access, Call(f"Bearer {token}", certificate="alice")) == "shop"
    assert name_of(access, Call(f"bEaReR {token}", certificate="orchestrator")) == "shop"
    for says_nothing in (Call(), Call(said=None)):
        assert "identifies its callers" in str(refused(access_of(tmp_path, CERTIFICATES + entry), says_nothing))
    assert "identifies its callers" in str(refused(access_of(tmp_path, entry), Call(certificate="alice")))


def test_an_orchestrators_certificate_is_no_users(tmp_path: Path) -> None:
    access = access_of(tmp_path, CERTIFICATES)
    assert "belongs to an orchestrator" in str(refused(access, Call(certificate="orchestrator")))


def test_what_another_process_says_counts_before_what_its_certificate_says(tmp_path: Path) -> None:
    access = access_of(tmp_path, CERTIFICATES, Vouching(b"secret", ["b"]))
    said = Vouching(b"secret", ["a"]).metadata("cert:alice", "b")
    assert name_of(access, Call(certificate="orchestrator", said=said)) == "cert:alice"


@pytest.mark.parametrize("name", ["a" * 201, "two\nlines"])
def test_a_certificate_whose_name_cannot_be_used_is_refused(tmp_path: Path, name: str) -> None:
    access = access_of(tmp_path, CERTIFICATES)
    assert name_of(access, Call(certificate="a" * 200)) == "cert:" + "a" * 200
    assert "cannot be used as a name" in str(refused(access, Call(certificate=name)))


def test_a_call_shows_one_authorization_of_the_one_scheme(tmp_path: Path) -> None:
    token, entry = token_and_entry("shop", 3)
    access = access_of(tmp_path, entry)
    assert "one authorization" in str(refused(access, Call(f"Bearer {token}", f"Bearer {token}")))
    for wrong in (token, "Bearer", "Bearer ", f"Basic {token}"):
        assert "Bearer TOKEN" in str(refused(access, Call(wrong)))


def test_a_token_that_is_no_web_token_is_not_known_whether_or_not_those_are_believed(tmp_path: Path) -> None:
    _, entry = token_and_entry("shop", 3)
    write_keys(tmp_path / "keys.json", {"key": ec.generate_private_key(ec.SECP256R1())})
    web = entry + '\n[jwt]\nkeys = "keys.json"\naudience = "a"\nissuer = "i"'
    for content in (entry, web):
        assert "not known here: it may have been withdrawn" in str(
            refused(access_of(tmp_path, content), Call("Bearer no.token"))
        )


def test_a_tokens_check_is_remembered_and_only_so_many_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_MOST_KNOWN", 2)
    made = [token_and_entry(name, 3) for name in "abc"]
    checked: list[str] = []
    check = door._Rules.check

    def noted(rules: Any, token: str) -> tuple[str, float]:
        checked.append(token)
        return check(rules, token)

    monkeypatch.setattr(door._Rules, "check", noted)
    access = access_of(tmp_path, "\n".join(entry for _, entry in made))
    first, second, third = (token for token, _ in made)
    for token in (first, first, second, first, third, third, second, first):
        name_of(access, Call(f"Bearer {token}"))
    assert checked == [first, second, third, first], "the one that came first is forgotten first"


def test_a_token_counts_until_it_expires_though_its_check_is_remembered(tmp_path: Path) -> None:
    token, entry = token_and_entry("shop", 3)
    (tmp_path / "access.toml").write_text(entry)
    ((kept,),) = (principal.tokens for principal in read_access_file(tmp_path / "access.toml").principals)
    assert kept.expires is not None
    now = kept.expires.timestamp() - 1
    access = Access(tmp_path / "access.toml", clock=lambda: now)
    assert name_of(access, Call(f"Bearer {token}")) == "shop"
    now += 1
    assert refused(access, Call(f"Bearer {token}")).metadata["why"] == "expired"


def test_clocks_may_differ_by_ten_seconds_when_a_web_token_expires(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    write_keys(tmp_path / "keys.json", {"key": key})
    (tmp_path / "access.toml").write_text('[jwt]\nkeys = "keys.json"\naudience = "a"\nissuer = "i"')
    expires = int(time.time()) + 600
    claims = {"sub": "carol", "aud": "a", "iss": "i", "exp": expires}
    call = Call("Bearer " + jwt.encode(claims, key, "ES256", headers={"kid": "key"}))
    now = expires + 9.0
    access = Access(tmp_path / "access.toml", clock=lambda: now)
    assert name_of(access, call) == "jwt:carol"
    now = expires + 10.0
    assert refused(access, call).metadata["why"] == "expired"


def test_a_web_token_that_its_library_fails_on_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_keys(tmp_path / "keys.json", {"key": ec.generate_private_key(ec.SECP256R1())})
    access = access_of(tmp_path, '[jwt]\nkeys = "keys.json"\naudience = "a"\nissuer = "i"')

    def fails(_: str) -> dict[str, Any]:
        raise RecursionError

    monkeypatch.setattr(jwt, "get_unverified_header", fails)
    assert "has values that cannot be read" in str(refused(access, Call("Bearer a.b.c")))


def test_a_file_that_is_not_there_or_names_a_token_by_nothing_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    with pytest.raises(AccessFileError, match="No such file"):
        read_access_file(path)
    salt, sha256 = "0" * 32, "0" * 64
    path.write_text(f'[[principals]]\nname = "shop"\ntokens = [{{id = "", salt = "{salt}", sha256 = "{sha256}"}}]')
    with pytest.raises(AccessFileError, match="id"):
        read_access_file(path)
