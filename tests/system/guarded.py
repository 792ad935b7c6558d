"""Orchestrators that ask who is there: by token, JSON web token or certificate; one process, two of
them, or two replicas."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from proving.certificates import Authority
from slipstream.bearer_tokens import make_token
from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service, wait_until_healthy
from slipstream.client import Client
from slipstream.rpc.channel import CHANNEL_OPTIONS

KINDS = ("token", "jwt", "certificate")
SETUPS = ("one process", "two processes", "two replicas")
NAMES = ("alice", "bob", "watcher")
AUDIENCE, ISSUER = "slipstream", "https://login.example"
ORCHESTRATOR = "orchestrator"
"""The common name of the certificate that orchestrators show one another."""

_PREFIXES = {"token": "", "jwt": "jwt:", "certificate": "cert:"}
_CONNECTIONS = 6
"""As many to one port as meet both of its processes, but for once in 32 times."""


@dataclass
class Guarded:
    """A system whose callers say who they are in one way."""

    kind: str
    doors: list[str]
    """Where it listens: an address for each replica."""
    connection_count: int
    """How many connections to a door meet every process behind it."""
    authority: Authority | None
    tokens: dict[str, str]

    def principal(self, name: str) -> str:
        """What the orchestrator calls this caller."""
        return _PREFIXES[self.kind] + name

    def metadata(self, name: str | None) -> tuple[tuple[str, str], ...]:
        """What a call of this caller's says."""
        return () if name is None or self.authority is not None else (("authorization", f"Bearer {self.tokens[name]}"),)

    def client(self, name: str | None, door: int = 0) -> Client:
        """A client of this caller's; None: of one who shows nothing, or a certificate without a
        name."""
        address = self.doors[door % len(self.doors)]
        if self.authority is None:
            return Client(address, metadata=self.metadata(name))
        shown = self.authority.issue(name or "nameless", common_name=name)
        return Client(address, credentials=self.authority.trust(shown))

    def clients(self, name: str | None) -> Iterator[Client]:
        """Clients of this caller's, one after another, that meet every process."""
        for door in range(len(self.doors)):
            for _ in range(self.connection_count):
                with self.client(name, door) as client:
                    yield client


def _access_file(folder: Path, kind: str, entries: dict[str, Any]) -> Path:
    lines = [f'orchestrators = ["{ORCHESTRATOR}"]', "certificates = true"] if kind == "certificate" else []
    lines += ["[default]", "max_session_count = 8"]
    for name in NAMES:
        lines += ["[[principals]]", f'name = "{_PREFIXES[kind]}{name}"']
        if kind == "token":
            entry = entries[name]
            lines += [f'tokens = [{{ id = "{entry.id}", salt = "{entry.salt}", sha256 = "{entry.sha256}" }}]']
        lines += ["operator = true"] if name == "watcher" else []
    lines += (
        ["[jwt]", 'keys = "keys.json"', f'audience = "{AUDIENCE}"', f'issuer = "{ISSUER}"'] if kind == "jwt" else []
    )
    path = folder / "access.toml"
    path.write_text("\n".join(lines))
    return path


def _web_tokens(folder: Path) -> dict[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    shown = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    (folder / "keys.json").write_text(json.dumps({"keys": [{**shown, "kid": "first", "alg": "ES256"}]}))
    claims = {"aud": AUDIENCE, "iss": ISSUER, "exp": time.time() + 3600}
    return {name: jwt.encode({**claims, "sub": name}, key, "ES256", headers={"kid": "first"}) for name in NAMES}


@contextmanager
def guarded(folder: Path, kind: str, setup: str, target: str) -> Iterator[Guarded]:
    """Such a system over a verifier of a paper model; afterwards no process is left."""
    made = {name: make_token() for name in NAMES}
    tokens = {name: token for name, (token, _) in made.items()}
    if kind == "jwt":
        tokens = _web_tokens(folder)
    access = _access_file(folder, kind, {name: entry for name, (_, entry) in made.items()})
    authority = Authority(folder, "all") if kind == "certificate" else None

    def connect(address: str) -> grpc.Channel:
        if authority is None:
            return grpc.insecure_channel(address, CHANNEL_OPTIONS)
        return grpc.secure_channel(address, authority.trust(authority.issue("probe")), CHANNEL_OPTIONS)

    with ExitStack() as stack:

        def start(module: str, flags: list[str]) -> Service:
            service = Service(module, module, free_address(), flags, {}, connect)
            stack.callback(service.stop)
            return service

        by_tls = [] if authority is None else authority.issue("server").flags("tls")
        verifier = start("verifier_service", ["--model", target, "--kv-memory-mib", "1", *by_tls])
        flags = ["--verifier", verifier.address, "--draft", "", "--access", str(access)]
        flags += ["--store", str(folder / "sessions.db"), *by_tls]
        if authority is not None:
            shown = authority.issue("peer", common_name=ORCHESTRATOR)
            flags += ["--tls-client-ca", authority.file, "--peer-tls-ca", authority.file, *shown.flags("peer-tls")]
        flags += ["--process-count", "2"] if setup == "two processes" else []
        orchestrators = [start("orchestrator", flags) for _ in range(2 if setup == "two replicas" else 1)]
        wait_until_healthy([verifier, *orchestrators], 120)
        doors = [service.address for service in orchestrators]
        yield Guarded(kind, doors, _CONNECTIONS if setup == "two processes" else 1, authority, tokens)
