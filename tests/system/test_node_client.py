"""The Node package's own tests run against real services, and its texts are those of Python's
client."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from proving.certificates import Authority
from slipstream.bearer_tokens import make_token
from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.cli.service_process import Service, wait_until_healthy
from slipstream.client import Client, PeerError, Settings
from slipstream.version import VERSION
from tests import node_packages
from tests.documents import ROOT, blocks
from tests.envoy import envoy_process

PACKAGE = ROOT / "clients" / "node"
QUESTIONS = ["What does os.path.join do?", "And os.path.split?", "What is len?"]
PRINTED_ADDRESS = "127.0.0.1:50051"
SAMPLED = Settings(seed=7, temperature=1.5, max_token_count=40)
LARGE_SEED = 2**53 + 1
SLOW = "arithmetic:ends=0&forward_ms=15"
"""A model whose turns last: a turn of 8,000 tokens takes minutes."""

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with LocalServices(PairSettings()) as local:
        yield local.orchestrator_address


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "public")


@pytest.fixture(scope="module")
def guarded(folder: Path, authority: Authority) -> Iterator[dict[str, str]]:
    """An orchestrator behind TLS that asks for a token."""
    token, kept = make_token()
    access = folder / "access.toml"
    access.write_text(
        '[[principals]]\nname = "alice"\n'
        f'tokens = [{{ id = "{kept.id}", salt = "{kept.salt}", sha256 = "{kept.sha256}" }}]\n'
    )
    with ExitStack() as stack:

        def start(module: str, *flags: str, credentials: grpc.ChannelCredentials | None = None) -> Service:
            def connect(there: str) -> grpc.Channel:
                return grpc.secure_channel(there, credentials) if credentials else grpc.insecure_channel(there)

            service = Service(module, module, free_address(), flags, {}, connect)
            stack.callback(service.stop)
            return service

        verifier = start("verifier_service", "--model", SLOW, "--kv-memory-mib", "1")
        flags = ["--verifier", verifier.address, "--draft", "", "--access", str(access), "--store", "memory"]
        by_tls = authority.issue("orchestrator").flags("tls")
        orchestrator = start("orchestrator", *flags, *by_tls, credentials=authority.trust())
        wait_until_healthy([verifier, orchestrator], 120)
        yield {"address": orchestrator.address, "ca": Path(authority.file).read_text(), "token": token}


@pytest.fixture(scope="module")
def web(folder: Path, authority: Authority, guarded: dict[str, str]) -> Iterator[dict[str, str] | None]:
    """Envoy in front of the guarded orchestrator, with the configuration for browsers. None where
    there is no Envoy for the platform."""
    if sys.platform != "linux":
        yield None
        return
    with envoy_process("grpc-web.yaml", guarded["address"], authority, folder) as there:
        yield {"url": f"https://localhost:{there.rpartition(':')[2]}", "origin": "https://chat.example.com"}


@pytest.fixture(scope="module")
def expected(address: str) -> dict[str, Any]:
    """What Python's client gets."""
    with Client(address) as client:
        with client.chat(settings=SAMPLED) as chat:
            texts = [chat.send(question).wait().text for question in QUESTIONS]
        several = client.answer([("user", QUESTIONS[0])], SAMPLED, choice_count=2)
        several.wait()
        large = Settings(seed=LARGE_SEED, temperature=1.5, max_token_count=40)
        text = client.answer([("user", QUESTIONS[0])], large).wait().text
    return {
        "chat": texts,
        "choices": [result.text for result in several.results],
        "largeSeed": {"seed": str(LARGE_SEED), "text": text},
    }


def test_the_node_package_passes_its_tests(
    address: str,
    authority: Authority,
    guarded: dict[str, str],
    web: dict[str, str] | None,
    expected: dict[str, Any],
) -> None:
    services = {"address": address, "guarded": guarded, "web": web, "expected": expected}
    variables = {"SLIPSTREAM_TEST_SERVICES": json.dumps(services), "NODE_EXTRA_CA_CERTS": authority.file}
    node_packages.install(PACKAGE)
    shown = node_packages.run(["npm", "test"], PACKAGE, variables)
    assert web is None or "skipped 0" in shown


@pytest.mark.skipif(sys.platform != "linux", reason="PyPI has no Envoy for every platform")
def test_the_envoy_for_strangers_passes_calls_on(folder: Path, authority: Authority, guarded: dict[str, str]) -> None:
    short = Settings(max_token_count=5)
    with envoy_process("envoy.yaml", guarded["address"], authority, folder) as there:
        with Client(there, credentials=authority.trust(), token=guarded["token"]) as client:
            assert len(client.generate([1, 2, 3], short).wait().token_ids) == 5
        with Client(there, credentials=authority.trust(), token="wrong") as client, pytest.raises(PeerError) as refused:
            client.server_info()
        assert refused.value.reason == "UNAUTHENTICATED"


def test_the_blocks_of_the_node_packages_readme_run(address: str) -> None:
    for number, block in enumerate(block for block in blocks(PACKAGE / "README.md") if block.language == "js"):
        program = PACKAGE / "build" / f"readme{number}.js"  # there it finds the package by its name
        program.write_text(block.code.replace(PRINTED_ADDRESS, address))
        assert node_packages.run(["node", str(program)], PACKAGE).strip()


def test_the_node_package_has_slipstreams_version_and_no_registrys_address() -> None:
    package = json.loads((PACKAGE / "package.json").read_text())
    lock = json.loads((PACKAGE / "package-lock.json").read_text())
    assert package["version"] == lock["version"] == VERSION
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]


def test_the_block_for_browsers_runs(authority: Authority, guarded: dict[str, str], web: dict[str, str] | None) -> None:
    if web is None:
        pytest.skip("PyPI has no Envoy for every platform")
    (block,) = (block for block in blocks(ROOT / "docs" / "guides" / "other-languages.md") if block.language == "js")
    program = PACKAGE / "build" / "browser.js"
    code = block.code.replace("https://slipstream.example.com", web["url"])
    program.write_text(code.replace("YOUR_TOKEN", guarded["token"]))
    assert node_packages.run(["node", str(program)], PACKAGE, {"NODE_EXTRA_CA_CERTS": authority.file}).strip()
