"""Tokens, and what an access file says of a principal."""

from __future__ import annotations

import base64
import json
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from orchestrator.access.access import Access
from orchestrator.access.access_file import AccessFile, read_access_file
from orchestrator.access.vouching import Vouching
from orchestrator.access.web_tokens import _moment
from orchestrator.errors import AccessFileError, UnauthenticatedError
from orchestrator.sessions.admission.principal import Limits, Priority
from slipstream.bearer_tokens import TokenHash, id_of, make_token
from slipstream.cli.__main__ import app
from slipstream.cli.token import token_and_entry


def test_a_token_fits_its_own_hash_and_no_other() -> None:
    token, kept = make_token()
    other, _ = make_token()
    assert kept.fits(token) and id_of(token) == kept.id
    assert not kept.fits(other)
    assert not kept.fits(f"{kept.id}.")
    assert not kept.fits(token + "x")
    assert not TokenHash(kept.id, "00" * 16, kept.sha256).fits(token)
    assert token.partition(".")[2] not in repr(kept)


def test_the_command_prints_what_the_file_is_to_keep_and_the_token_beside_it(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["token", 'the "shop"', "--days", "3"])
    assert made.exit_code == 0
    path = tmp_path / "access.toml"
    path.write_text(made.stdout)
    (principal,) = read_access_file(path).principals
    assert principal.name == 'the "shop"'
    token = made.stderr.rpartition(" ")[2].strip()
    assert principal.tokens[0].hash.fits(token)
    assert token not in made.stdout


def test_a_token_ends_after_its_days() -> None:
    _, entry = token_and_entry("a", 30, datetime(2030, 1, 1, 12, tzinfo=UTC))
    assert tomllib.loads(entry)["principals"][0]["tokens"][0]["expires"] == datetime(2030, 1, 31, 12, tzinfo=UTC)


def test_unset_fields_of_a_principal_are_the_defaults() -> None:
    file = AccessFile.model_validate(
        {
            "certificates": True,
            "default": {"max_session_count": 3, "priority": "low"},
            "principals": [{"name": "a", "tokens_per_minute": 60, "priority": "high", "operator": True}],
        }
    )
    known, unknown = file.principal("a"), file.principal("cert:b")
    assert (known.limits, known.priority, known.operator) == (Limits(3, None, 60), Priority.HIGH, True)
    assert (unknown.limits, unknown.priority, unknown.operator) == (Limits(3, None, None), Priority.LOW, False)


class Call:
    """What a principal is told from."""

    def __init__(self, token: str) -> None:
        self._token = token

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self._token}")]


def asked_of(access: Access, token: str) -> str:
    return access.principal_of(Call(token)).name


def test_a_process_believes_only_what_another_says_to_it_by_their_stores_secret() -> None:
    first, second = Vouching(b"secret", ["a", "unix:a"]), Vouching(b"secret", ["b"])
    said = first.metadata("cert:alice", "b")
    assert second.principal_of(said) == "cert:alice"
    assert first.principal_of(()) is None
    with pytest.raises(UnauthenticatedError, match="only an orchestrator of the same store"):
        first.principal_of(said)  # it was said to another process
    assert first.principal_of(second.metadata("jwt:bob", "unix:a")) == "jwt:bob"
    with pytest.raises(UnauthenticatedError):
        Vouching(b"guessed", ["b"]).principal_of(said)
    (principal, _), proof = said
    for wrong in (
        ((principal, b"cert:bob"), proof),
        (proof,),
        ((principal, b"cert:alice"),),
        ((principal, b"cert:alice"), (proof[0], "\u00e9")),
        ((principal, "cert:alice"), proof),
    ):
        with pytest.raises(UnauthenticatedError):
            second.principal_of(wrong)


def write_keys(path: Path, keys: dict[str, ec.EllipticCurvePrivateKey]) -> None:
    shown = [jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True) for key in keys.values()]
    content = {"keys": [{**key, "kid": name, "alg": "ES256"} for name, key in zip(keys, shown, strict=True)]}
    path.write_text(json.dumps(content))


def test_a_token_of_a_key_that_was_withdrawn_counts_no_more_known_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    old, new = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "access.toml").write_text('[jwt]\nkeys = "keys.json"\naudience = "a"\nissuer = "i"')
    write_keys(tmp_path / "keys.json", {"old": old})
    access = Access(tmp_path / "access.toml")
    claims = {"sub": "carol", "aud": "a", "iss": "i", "exp": time.time() + 600}
    token = jwt.encode(claims, old, "ES256", headers={"kid": "old"})
    assert asked_of(access, token) == "jwt:carol"
    write_keys(tmp_path / "keys.json", {"new": new})
    now += 2
    with pytest.raises(UnauthenticatedError, match="a key that is not known here"):
        asked_of(access, token)


def test_a_file_that_asks_for_what_is_not_installed_or_breaks_its_reader_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    token, entry = token_and_entry("shop", 3)
    path = tmp_path / "access.toml"
    path.write_text(entry)
    access = Access(path)
    monkeypatch.setitem(sys.modules, "orchestrator.access.web_tokens", None)
    path.write_text(entry + '\n[jwt]\nkeys = "keys.json"\naudience = "a"\nissuer = "i"')
    now += 2
    assert asked_of(access, token) == "shop"
    with pytest.raises(AccessFileError, match="pip install"):
        Access(path)
    monkeypatch.setattr("orchestrator.access.access.read_access_file", lambda path: 1 / 0)
    path.write_text(entry)
    now += 2
    assert asked_of(access, token) == "shop"


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


HUGE = 10**400
ODD_CLAIMS = {
    "exp far away": {"exp": HUGE},
    "exp infinite": {"exp": float("inf")},
    "exp no number": {"exp": float("nan")},
    "exp before all": {"exp": -HUGE},
    "exp too exact": {"exp": 2**80},
    "exp a text": {"exp": "9999999999"},
    "exp true": {"exp": True},
    "exp a list": {"exp": [9999999999]},
    "nbf far away": {"nbf": HUGE},
    "nbf infinite": {"nbf": float("-inf")},
    "nbf a list": {"nbf": []},
    "iat far away": {"iat": HUGE},
    "iat infinite": {"iat": float("inf")},
    "iat an object": {"iat": {}},
    "sub an object": {"sub": {"name": "carol"}},
    "sub a number": {"sub": 5},
    "sub a list": {"sub": ["carol"]},
    "sub empty": {"sub": ""},
    "sub two lines": {"sub": "carol\nroot"},
    "sub a surrogate": {"sub": "\ud800"},
    "aud an object": {"aud": {"a": 1}},
    "aud a list of numbers": {"aud": [1, HUGE]},
    "iss a list": {"iss": ["i"]},
    "jti a number": {"jti": 5},
}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> tuple[Access, ec.EllipticCurvePrivateKey]:
    folder, key = tmp_path_factory.mktemp("web"), ec.generate_private_key(ec.SECP256R1())
    (folder / "access.toml").write_text('[jwt]\nkeys = "keys.json"\naudience = "a"\nissuer = "i"')
    write_keys(folder / "keys.json", {"key": key})
    return Access(folder / "access.toml"), key


def signed(key: ec.EllipticCurvePrivateKey, payload: bytes, header: bytes = b'{"alg":"ES256","kid":"key"}') -> str:
    """A token with any payload: `jwt.encode` refuses some of them."""
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, payload)]
    signature = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256).sign(b".".join(parts), key)
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


@pytest.mark.parametrize("odd", ODD_CLAIMS.values(), ids=ODD_CLAIMS)
def test_a_web_token_with_odd_claims_is_not_believed(
    web: tuple[Access, ec.EllipticCurvePrivateKey], odd: dict[str, object]
) -> None:
    access, key = web
    claims = {"sub": "carol", "aud": "a", "iss": "i", "exp": int(time.time()) + 600}
    assert asked_of(access, signed(key, json.dumps(claims).encode())) == "jwt:carol"
    with pytest.raises(UnauthenticatedError):
        asked_of(access, signed(key, json.dumps(claims | odd).encode()))


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (b'{"alg":"ES256","kid":"key"}', _nested(20_000).encode()),
        (b'{"alg":"ES256","kid":"key"}', b"5"),
        (b'{"alg":"ES256","kid":"key"}', b"\xff"),
        (b'{"alg":"ES256","kid":"key"}', b'{"exp":' + b"9" * 5000 + b"}"),
        (_nested(20_000).encode(), b"{}"),
        (b'{"alg":"ES256","kid":' + _nested(500).encode() + b"}", b"{}"),
        (b'{"alg":["ES256"],"kid":"key"}', b"{}"),
        (b'{"alg":"ES256","kid":"key","crit":["b64"],"b64":false}', b"{}"),
        (b"[]", b"{}"),
    ],
)
def test_a_web_token_that_cannot_be_read_is_not_believed(
    web: tuple[Access, ec.EllipticCurvePrivateKey], header: bytes, payload: bytes
) -> None:
    access, key = web
    with pytest.raises(UnauthenticatedError):
        asked_of(access, signed(key, payload, header))


@pytest.mark.parametrize("name", ["access.toml", "keys.json"])
def test_an_access_file_that_any_user_may_write_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "access.toml").write_text('[jwt]\nkeys = "keys.json"\naudience = "a"\nissuer = "i"')
    write_keys(tmp_path / "keys.json", {"key": ec.generate_private_key(ec.SECP256R1())})
    Access(tmp_path / "access.toml")
    (tmp_path / name).chmod(0o666)
    with pytest.raises(AccessFileError, match=f"{name} can be changed by every user of this machine: chmod o-w"):
        Access(tmp_path / "access.toml")


@pytest.mark.parametrize("value", [True, False, "5", None, [5], float("nan"), float("inf"), -(2.0**53), 2**53])
def test_a_claim_that_is_no_number_of_seconds_is_no_moment(value: object) -> None:
    with pytest.raises(UnauthenticatedError, match="exp must be a number of seconds"):
        _moment({"exp": value}, "exp")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "No such file or directory"),
        ("principals = 5", "principals: Input should be a valid"),
        ("[[principals]]\nname = 'a'", "no caller could be identified"),
        ("certificates = true\nwrong = 1", "wrong: Extra inputs are not permitted"),
        ("[[principals]]\nname = 'a'\ntokens = [{ id = 'x', salt = 'zz', sha256 = '' }]", "principals.0.tokens.0.salt"),
        ("[[principals]]\nname = 'a'\n[[principals]]\nname = 'a'\n", "principal 'a' is there more than once"),
        ("[jwt]\nkeys = 'none.json'\naudience = 'a'\nissuer = 'i'", "none.json: No such file or directory"),
        ("[jwt]\nkeys = 'access.toml'\naudience = 'a'\nissuer = 'i'", "is no set of JSON web keys"),
        ("certificates = tru", "is no TOML"),
    ],
)
def test_an_access_file_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, content: str | None, what: str
) -> None:
    path = tmp_path / "access.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(AccessFileError) as caught:
        Access(path)
    (line,) = str(caught.value).splitlines()
    assert what in line and str(path.parent) in line
