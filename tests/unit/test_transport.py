"""What is refused before anything listens or connects: plaintext abroad, and files that cannot be
what a flag says."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.errors import NotReadyError
from orchestrator.processes.process_slot import numbered
from orchestrator.processes.replicas import Replicas
from orchestrator.processes.settings import OrchestratorSettings
from proving.certificates import Authority
from slipstream.cli.__main__ import app
from slipstream.cli.reaching import Server
from slipstream.client import AsyncClient, Client, PlaintextError
from slipstream.errors import SlipstreamError
from slipstream.transport.addresses import stays_here
from slipstream.transport.certificates import TlsFiles
from slipstream.transport.reloading import FileError, Reloaded
from slipstream.transport.tokens import reloaded_bearer


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:50051",
        "127.8.9.10:1",
        "localhost:50051",
        "Localhost",
        "[::1]:50051",
        "unix:/run/slipstream/0",
        "unix-abstract:slipstream",
        "ipv4:127.0.0.1:1,127.0.0.2:1",
        "ipv6:[::1]:1",
        "dns:localhost:1",
        "dns://8.8.8.8/localhost:1",
    ],
)
def test_loopback_stays_here(address: str) -> None:
    assert stays_here(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:50051",
        "[::]:50051",
        ":50051",
        "*:50051",
        "10.0.0.1:50051",
        "verifier:50052",
        "localhost.example:1",
        "127.0.0.1.example:1",
        "ipv4:127.0.0.1:1,10.0.0.1:1",
        "dns://127.0.0.1/verifier:1",
        "passthrough:127.0.0.1:1",
        "[fe80::1]:1",
        "",
    ],
)
def test_anything_else_may_leave(address: str) -> None:
    assert not stays_here(address)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(**given: Any) -> OrchestratorSettings:
        monkeypatch.setattr(sys, "argv", ["orchestrator"])
        return OrchestratorSettings(**given)

    return make


def refusal(made: Any) -> str:
    with pytest.raises(SlipstreamError) as caught:
        made()
    return str(caught.value)


def test_plaintext_abroad_has_to_be_asked_for(settings: Any, tmp_path: Path) -> None:
    assert "--address 0.0.0.0:1 is not on loopback" in refusal(settings(address="0.0.0.0:1").listening)
    assert settings(address="0.0.0.0:1", insecure=True).listening().credentials is None
    own = Authority(tmp_path, "ours").issue("server")
    files = {"tls_certificate": str(own.certificate), "tls_key": str(own.key)}
    by_tls = settings(address="0.0.0.0:1", **files)
    assert by_tls.listening().credentials is not None
    admin = by_tls.model_copy(update={"admin_address": "0.0.0.0:2"})
    assert "--admin-address 0.0.0.0:2 is not on loopback" in refusal(admin.listening), "which has no TLS"
    assert admin.model_copy(update={"insecure": True}).listening().admin_address == "0.0.0.0:2"


def test_up_listens_abroad_where_all_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Any, Any]] = []

    def serving(settings: Any, _listening: Any, **addresses: Any) -> Any:
        started.append((settings, addresses))
        raise SystemExit(0)

    monkeypatch.setattr("slipstream.cli.commands.serve.serving", serving)
    abroad = ["up", "--orchestrator-address", "0.0.0.0:1"]
    assert "--orchestrator-address 0.0.0.0:1 is not on loopback" in CliRunner().invoke(app, abroad).output
    assert not started
    assert CliRunner().invoke(app, [*abroad, "--insecure"]).exit_code == 0
    ((settings, addresses),) = started
    assert addresses["orchestrator"] == "0.0.0.0:1"
    assert settings.target_flags == settings.draft_flags == settings.orchestrator_flags == ["--insecure"]


def test_the_peer_token_goes_abroad_by_tls_or_where_it_is_asked_for(settings: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-long-enough-secret")
    token = {"peer_token_file": str(tmp_path / "token")}
    for there in ({"verifier": "127.0.0.1:1,gpu-node:1"}, {"draft": "gpu-node:1"}):
        assert "--peer-token-file would go to gpu-node:1 in plaintext" in refusal(settings(**token, **there).connector)
        settings(**token, **there, insecure=True).connector()
        settings(**token, **there, peer_tls_ca=Authority(tmp_path, "ours").file).connector()
    settings(**token, draft="").connector()


async def test_what_clients_said_is_passed_on_abroad_by_tls_or_where_it_is_asked_for(
    settings: Any, tmp_path: Path
) -> None:
    replicas = Replicas(None, None, settings().connector())
    with pytest.raises(NotReadyError, match="the orchestrator at replica:1 would be told in plaintext"):
        await replicas.connect("replica:1")
    by_tls = settings(peer_tls_ca=Authority(tmp_path, "ours").file).connector()
    insecure = settings(insecure=True).connector()
    for connector, address in ((by_tls, "replica:1"), (insecure, "replica:1"), (settings().connector(), "127.0.0.1:1")):
        await connector.open_orchestrator(address).close()


def test_every_half_of_a_pair_is_asked_for_by_name(settings: Any, tmp_path: Path) -> None:
    own = Authority(tmp_path, "ours").issue("server")
    certificate, authority = str(own.certificate), Authority(tmp_path, "other").file
    assert "--tls-key is needed" in refusal(settings(tls_certificate=certificate).listening)
    assert "--tls-certificate is needed" in refusal(settings(tls_key=str(own.key)).listening)
    assert "needed beside --tls-client-ca" in refusal(settings(tls_client_ca=authority).listening)
    assert "--peer-tls-key is needed" in refusal(settings(peer_tls_certificate=certificate).connector)
    pair = {"peer_tls_certificate": certificate, "peer_tls_key": str(own.key)}
    assert "--peer-tls-ca is needed" in refusal(settings(**pair).connector)
    assert "--peer-tls-ca is needed" in refusal(settings(peer_tls_name="verifier").connector)


def test_files_that_are_not_what_their_flag_says(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    own, other = ours.issue("server"), ours.issue("other")
    certificate, key, absent = str(own.certificate), str(own.key), str(tmp_path / "absent")
    assert (
        refusal(TlsFiles(certificate, absent).pair) == f"--tls-key {absent} cannot be read: No such file or directory"
    )
    assert "is not the key of" in refusal(TlsFiles(certificate, str(other.key)).pair)
    assert "in PEM, without a password" in refusal(TlsFiles(key, certificate).pair)
    assert "has to hold certificates" in refusal(TlsFiles(authority=key).trusted)
    (tmp_path / "empty").write_text("")
    assert "has to hold certificates" in refusal(TlsFiles(authority=str(tmp_path / "empty")).trusted)
    assert "has to hold certificates" in refusal(TlsFiles(authority=sys.executable).trusted)


def test_a_key_with_a_password_is_refused_without_a_prompt(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form

    own = Authority(tmp_path, "ours").issue("server")
    key = form.load_pem_private_key(own.key.read_bytes(), None)
    own.key.write_bytes(
        key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"secret"))
    )
    assert "without a password" in refusal(TlsFiles(str(own.certificate), str(own.key)).pair)


def test_a_value_is_never_made_of_half_a_change(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1")
    second.write_text("1")
    changes = iter([("2", "2"), None])

    def load() -> tuple[str, str]:
        one = first.read_text()
        if (change := next(changes, None)) is not None:  # both are replaced in the middle
            first.write_text(change[0])
            second.write_text(change[1])
        return one, second.read_text()

    assert Reloaded([str(first), str(second)], load).current == ("2", "2")


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As Kubernetes replaces what it has mounted."""
    caplog.set_level(logging.INFO)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
    link = tmp_path / "data"
    link.symlink_to("old")
    watched = Reloaded([str(link / "token")], lambda: (link / "token").read_text(), look_seconds=0)
    assert watched.current is watched.current == "old"
    link.unlink()
    link.symlink_to("new")
    assert watched.current == "new"
    assert caplog.messages == [f"{link / 'token'}: changed, and read again"]


def test_a_file_is_looked_at_no_more_often_than_is_said(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    watched = Reloaded([str(path)], path.read_text, look_seconds=3600)
    path.write_text("other")
    assert watched.current == "old"


async def test_clients_send_a_token_abroad_by_tls_only() -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(PlaintextError, match=r"would go to 10\.0\.0\.1:1 in plaintext"):
            kind("10.0.0.1:1", token="secret")
        with pytest.raises(ValueError, match="printable"):
            kind("127.0.0.1:1", token="two words")
    Client("127.0.0.1:1", token="secret").close()
    Client("10.0.0.1:1", token="secret", credentials=Server("", tls=True).credentials()).close()
    await AsyncClient("localhost:1", token="secret").close()


def test_commands_take_a_token_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("from-file\n")
    monkeypatch.setenv("SLIPSTREAM_TOKEN", "from-environment")
    assert Server("localhost:1", token_file=str(tmp_path / "token")).metadata() == (
        ("authorization", "Bearer from-file"),
    )
    assert Server("localhost:1").metadata() == (("authorization", "Bearer from-environment"),)
    with pytest.raises(PlaintextError):
        Server("10.0.0.1:1").client()
    monkeypatch.setenv("SLIPSTREAM_TOKEN", "two words")
    with pytest.raises(FileError, match="SLIPSTREAM_TOKEN has to hold a token"):
        Server("localhost:1").metadata()
    monkeypatch.delenv("SLIPSTREAM_TOKEN")
    assert Server("localhost:1").metadata() == ()
    with pytest.raises(FileError, match=r"--token-file .* has to hold a token"):
        Server("localhost:1", token_file=sys.executable).metadata()


def test_commands_show_a_certificate_by_tls_only(tmp_path: Path) -> None:
    own = Authority(tmp_path, "ours").issue("client")
    files = {"tls_certificate": str(own.certificate), "tls_key": str(own.key)}
    assert Server("localhost:1").credentials() is None
    assert Server("localhost:1", tls=True, **files).credentials() is not None
    with pytest.raises(FileError, match="is needed beside --tls-certificate"):
        Server("localhost:1", **files).credentials()


def test_of_several_processes_each_has_the_next_port() -> None:
    assert [numbered("0.0.0.0:9464", 0), numbered("[::1]:9464", 2), numbered("", 3)] == [
        "0.0.0.0:9464",
        "[::1]:9466",
        "",
    ]


@pytest.mark.parametrize(("length", "accepted"), [(1, False), (15, False), (16, True)])
def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path, length: int, accepted: bool) -> None:
    (tmp_path / "token").write_text("x" * length + "\n")
    if accepted:
        assert reloaded_bearer("--peer-token-file", str(tmp_path / "token")).current == "Bearer " + "x" * length
        return
    with pytest.raises(FileError, match=f"at least 16 characters, and holds {length}: make one") as caught:
        reloaded_bearer("--peer-token-file", str(tmp_path / "token"))
    assert "--peer-token-file" in str(caught.value) and "xx" not in str(caught.value)


def test_a_secret_that_every_user_may_change_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x" * 32)
    (tmp_path / "token").chmod(0o646)
    with pytest.raises(FileError, match="can be changed by every user of this machine: chmod o-w"):
        reloaded_bearer("--peer-token-file", str(tmp_path / "token"))
