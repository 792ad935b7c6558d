"""Three services that trust no peer without a certificate and a token, and what each refuses at its
start."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from proving.certificates import Authority
from slipstream.cli.local import LocalServices, free_address
from slipstream.cli.service_process import Service
from slipstream.client import Client, Settings
from slipstream.rpc.channel import CHANNEL_OPTIONS
from slipstream.wire.v1 import model_pb2, model_pb2_grpc
from tests.gateway_process import gateway_process
from tests.system.conftest import PAPER_PAIR, wait_for_health

SLIPSTREAM = [sys.executable, "-m", "slipstream.cli"]
PROMPTS = [[5, 6, 7], [90, 3], list(range(40))]


@dataclass
class Secured:
    """A pair's services by mutual TLS, the orchestrator in two processes."""

    services: dict[str, Service]
    clients: Authority
    peers: Authority
    flags: list[str]
    """What a command needs to be let in."""

    def trust(self) -> grpc.ChannelCredentials:
        return self.clients.trust(self.clients.issue("user", "user@example.org"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    clients, peers = Authority(folder, "clients"), Authority(folder, "peers")
    token = folder / "token"
    token.write_text("of-these-services\n")
    shown = peers.issue("orchestrator")
    of_peers = ["--tls-client-ca", peers.file, "--peer-token-file", str(token)]
    with ExitStack() as stack:
        services: dict[str, Service] = {}

        def start(name: str, module: str, flags: Sequence[str]) -> str:
            service = Service(name, module, free_address(), flags, {})
            stack.callback(service.stop)
            services[name] = service
            return service.address

        paper = [*PAPER_PAIR.target_flags, "--model"]
        # Certificates for another name than the address: --peer-tls-name.
        verifier = [*of_peers, *peers.issue("verifier", "peers.internal").flags("tls"), *paper, PAPER_PAIR.target]
        draft = [*of_peers, *peers.issue("draft", "peers.internal").flags("tls"), *paper, PAPER_PAIR.draft]
        orchestrator = [
            *("--verifier", start("verifier", "verifier_service", verifier)),
            *("--draft", start("draft", "draft_service", draft)),
            *("--process-count", "2", "--store", "memory"),
            *("--tls-client-ca", clients.file, *clients.issue("orchestrator").flags("tls")),
            *("--peer-tls-ca", peers.file, "--peer-tls-name", "peers.internal", *shown.flags("peer-tls")),
            *("--peer-token-file", str(token)),
        ]
        address = start("orchestrator", "orchestrator", orchestrator)
        flags = ["--tls-ca", clients.file, *clients.issue("user", "user@example.org").flags("tls")]
        found = Secured(services, clients, peers, [*flags, "--address", address])
        with grpc.secure_channel(address, found.trust(), options=CHANNEL_OPTIONS) as channel:
            wait_for_health(channel)
        yield found


def texts(client: Client) -> list[list[int]]:
    settings = Settings(max_token_count=40, seed=7, temperature=0.8)
    return [list(client.generate(prompt, settings).wait().token_ids) for prompt in PROMPTS]


@pytest.mark.essential
def test_the_text_is_the_same_by_mutual_tls_and_tokens_and_in_plaintext(secured: Secured, paper: LocalServices) -> None:
    address = secured.services["orchestrator"].address
    with Client(paper.orchestrator_address) as client:
        expected = texts(client)
    for _ in range(4):  # connections to either process
        with Client(address, credentials=secured.trust(), token="a-token") as client:
            assert texts(client) == expected
            info = client.server_info()
            assert info.verifier_reachable and info.draft_reachable
            assert len(client.status().processes) == 2, "each asks the other at its own socket"
    log = secured.services["orchestrator"].log.read_text()
    assert "ERROR" not in log and "refuses" not in log


@pytest.mark.essential
def test_a_gateway_gets_in_with_a_certificate_and_shows_its_own(secured: Secured, tmp_path: Path) -> None:
    shown = secured.clients.issue("gateway")
    authority = Authority(tmp_path, "browsers")
    flags = ["--orchestrator-tls-ca", secured.clients.file, *shown.flags("orchestrator-tls")]
    flags += [*authority.issue("gateway").flags("tls"), "--model-name", "paper"]
    trusting = ssl.create_default_context(cafile=authority.file)
    body = {"model": "paper", "prompt": PROMPTS[0], "max_tokens": 40, "seed": 7, "temperature": 0.8}
    with gateway_process(secured.services["orchestrator"].address, *flags, tls=trusting) as gateway:
        answer = gateway.send("/v1/completions", {**body, "return_token_ids": True})
    with Client(secured.services["orchestrator"].address, credentials=secured.trust()) as client:
        assert answer.body["choices"][0]["token_ids"] == texts(client)[0]


def test_commands_get_in_with_a_certificate_and_not_without(secured: Secured) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*SLIPSTREAM, *arguments], capture_output=True, text=True, timeout=60)

    commands = [
        run("info", *secured.flags),
        run("bench", "--requests", "2", "--max-tokens", "4", "--json", *secured.flags),
    ]
    assert [ended.returncode for ended in commands] == [0, 0], [ended.stderr for ended in commands]
    assert PAPER_PAIR.target in commands[0].stdout
    assert json.loads(commands[1].stdout)["servers"][0]["requests"] == {"completed": 2, "failed": 0}
    stranger = run("info", *secured.flags[:2], *secured.flags[-2:])
    assert stranger.returncode == 1
    assert stranger.stderr.count("\n") == 1


def test_a_peer_by_tls_alone_is_told_that_a_token_is_missing(secured: Secured) -> None:
    verifier = secured.services["verifier"].address
    credentials = secured.peers.trust(secured.peers.issue("someone"))
    options = (("grpc.ssl_target_name_override", "peers.internal"),)
    with grpc.secure_channel(verifier, credentials, options=options) as channel:
        wait_for_health(channel)
        with pytest.raises(grpc.RpcError) as caught:
            model_pb2_grpc.ModelServiceStub(channel).GetLoad(model_pb2.GetLoadRequest())
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_each_service_refuses_in_one_line_what_it_could_not_keep_safe(tmp_path: Path) -> None:
    own, other = Authority(tmp_path, "ours").issue("one"), Authority(tmp_path, "theirs").issue("other")
    (tmp_path / "token").write_text("a-long-enough-secret")
    public = ["--address", "0.0.0.0:0"]
    not_its_key = ["--tls-certificate", str(own.certificate), "--tls-key", str(other.key), "--process-count", "2"]
    abroad = ["--verifier", "gpu-node:1", "--peer-token-file", str(tmp_path / "token")]
    cases = [
        ("verifier_service", ["--model", "arithmetic:", *public], "verifier: --address 0.0.0.0:0 is not on loopback"),
        ("draft_service", ["--model", "arithmetic:", *public], "draft: --address 0.0.0.0:0 is not on loopback"),
        ("orchestrator", public, "orchestrator: --address 0.0.0.0:0 is not on loopback"),
        ("orchestrator", not_its_key, f"orchestrator: --tls-key {other.key} is not the key of"),
        ("orchestrator", abroad, "orchestrator: --peer-token-file would go to gpu-node:1 in plaintext"),
        ("gateway", public, "gateway: --address 0.0.0.0:0 is not on loopback"),
        ("gateway", ["--address", "8000"], "gateway: --address must be host:port"),
        ("gateway", ["--address", "127.0.0.1:65536"], "gateway: --address 127.0.0.1:65536 cannot be listened on"),
        ("gateway", ["--orchestrator", "gpu-node:1"], "gateway: --orchestrator gpu-node:1 is not on loopback"),
        ("gateway", not_its_key[:4], f"gateway: --tls-key {other.key} is not the key of"),
        ("slipstream.cli", ["up", "--draft-address", "0.0.0.0:1"], "slipstream: --draft-address 0.0.0.0:1 is not on"),
    ]
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-m", module, *flags], stderr=subprocess.PIPE, text=True)
            )
            for module, flags, _ in cases
        ]
        for process, (_, _, beginning) in zip(started, cases, strict=True):
            _, said = process.communicate(timeout=110)
            assert process.returncode == 1
            assert said.startswith(beginning) and said.count("\n") == 1, said
