"""Where people meet a request_id it says among whose requests the id is unique: two users behind
one token share those."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from slipstream.client import AsyncClient, Client

ROOT = Path(__file__).parents[2]
PROTO = (ROOT / "protos" / "slipstream" / "v1" / "orchestrator.proto").read_text()


def comment_of(message: str, field: str) -> str:
    body = re.search(rf"^message {message} {{\n(.*?)^}}", PROTO, re.M | re.S)
    assert body is not None
    found = re.search(rf"((?:^ *//.*\n)+) *(?:optional )?string {field} =", body[1], re.M)
    assert found is not None
    return " ".join(line.strip().removeprefix("//").strip() for line in found[1].splitlines())


@pytest.mark.parametrize("message", ["GenerateRequest", "CreateSessionRequest", "ForkSessionRequest", "ChatRequest"])
def test_an_id_that_is_a_principals_for_the_whole_server_says_so(message: str) -> None:
    comment = comment_of(message, "request_id")
    assert "principal" in comment and "whole server" in comment


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_clients_methods_say_so_too(client: type) -> None:
    for name in ("generate", "create_session"):
        text = " ".join(inspect.getdoc(getattr(client, name)).split())  # type: ignore[union-attr]
        assert "unique among all requests of one token" in text, name


def test_the_guide_to_the_client_says_so() -> None:
    guide = (ROOT / "docs" / "guides" / "python-client.md").read_text()
    assert "two users behind one token" in " ".join(guide.split())
