"""What a caller keeps out stays out of shards: in forks, after a kill, in another process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.responses.ids import session_of
from orchestrator.sessions.conversation.codec import Codec
from slipstream.cli.local import LocalServices
from slipstream.client import Client, Settings
from slipstream.distilling.records import read_shards
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from tests.commands import run
from tests.either_client import until
from tests.gateway_process import GatewayProcess, gateway_process
from tests.system.conftest import PAPER_PAIR
from tests.system.test_durable import LEASE, Replica

TARGET = "arithmetic:ends=0&forward_ms=2"
ANSWER = Settings(max_token_count=10)
PRIVATE = replace(ANSWER, do_not_collect=True)
LASTING = Settings(max_token_count=1500, draft_length=0)
"""Settings of a turn that runs while its orchestrator is killed."""


def collecting(out: Path, store: str = "memory") -> LocalServices:
    """Return services whose verifier collects all that it may."""
    flags = [*PAPER_PAIR.target_flags, "--collect", str(out), "--collect-text", "--collect-share", "1"]
    return LocalServices(
        replace(PAPER_PAIR, target=TARGET, draft="", target_flags=flags, orchestrator_flags=LEASE, store=store),
    )


def collected(out: Path, *marks: str) -> set[str]:
    """Return which of these words are in the texts of a folder."""
    codec = Codec.from_files(load_tokenizer_files(TARGET).files)
    texts = [codec.text_with_special_tokens(record.tokens.tolist()) for record in read_shards(out)]
    return {mark for mark in marks if any(mark in text for text in texts)}


def test_callers_are_told_what_a_verifier_collects_after_it_was_started_again(tmp_path: Path) -> None:
    with LocalServices(replace(PAPER_PAIR, draft="")) as local, Client(local.orchestrator_address) as client:
        assert client.server_info().target.collect_share == 0
        local.services["verifier"].stop()
        collect = ["--collect", str(tmp_path / "out"), "--collect-share", "0.5"]
        local.settings = replace(local.settings, target_flags=[*PAPER_PAIR.target_flags, *collect])
        local.start_verifier().wait_until_healthy()
        until(lambda: client.server_info().target.collect_share == 0.5)


@pytest.mark.essential
def test_a_private_turn_keeps_its_forks_out_and_a_fork_from_before_it_is_free(tmp_path: Path) -> None:
    out = tmp_path / "collected"
    with collecting(out) as local, Client(local.orchestrator_address) as client:
        session = client.create_session()
        session.send("before", ANSWER).wait()
        session.send("secret", PRIVATE).wait()
        session.send("after", ANSWER).wait()
        free = client.fork_session(session.session_id, 1)
        fork = client.fork_session(session.session_id, 2)
        for each, word in ((free, "free"), (fork, "forked"), (client.fork_session(fork.session_id), "again")):
            each.send(word, ANSWER).wait()
        whole = client.create_session(settings=PRIVATE)
        whole.send("wholly", ANSWER).wait()
        client.fork_session(whole.session_id, 0).send("empty", ANSWER).wait()
    words = "before", "secret", "after", "free", "forked", "again", "wholly", "empty"
    assert collected(out, *words) == {"before", "free"}


@pytest.mark.parametrize("takes_over", [False, True], ids=["restarted", "another process"])
def test_a_private_turn_keeps_its_session_out_after_a_kill(takes_over: bool, tmp_path: Path) -> None:
    out, store = tmp_path / "collected", str(tmp_path / "sessions.db")
    with collecting(out, store) as local, ExitStack() as stack:
        if takes_over:
            replica = Replica(local, store)
            stack.callback(replica.stop)
            replica.wait_until_healthy()
        with Client(local.orchestrator_address) as client:
            ended, running, later, free = (client.create_session() for _ in range(4))
            ended.send("ended", PRIVATE).wait()
            later.send("later", PRIVATE).wait()
            free.send("free", ANSWER).wait()
            lasting = replace(LASTING, do_not_collect=True)
            turns = [running.send("running", lasting), later.send("unsaid", LASTING), free.send("lasting", LASTING)]
            pieces = [iter(turn) for turn in turns]  # a reader that leaves ends its turn
            for each in pieces:
                next(each)
            local.services["orchestrator"].process.kill()
            local.services["orchestrator"].process.wait()
        if not takes_over:
            local.start_orchestrator().wait_until_healthy()
        with Client(replica.address if takes_over else local.orchestrator_address) as client:
            for before, number in ((running, 1), (later, 2), (free, 2)):
                assert client.watch(before.session_id, number).wait().generated_token_count == 1500
            for before in (ended, running, later, free):
                session = client.get_session(before.session_id)
                session.send("next", ANSWER).wait()
                client.fork_session(session.session_id).send("forked", ANSWER).wait()
    assert collected(out, "ended", "running", "later", "unsaid", "free", "lasting", "next") == {
        "free",
        "lasting",
        "next",
    }


class Http:
    """A caller of a gateway, of which each request ends up in a shard unless it is kept out."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._model = self.send("/v1/models")["data"][0]["id"]

    def send(self, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self._gateway.send(path, body)
        assert answer.status == 200, answer.body
        return answer.body

    def asked(self, path: str, **body: Any) -> Any:
        return self.send(path, {"model": self._model, **body})

    def responded(self, text: str, **body: Any) -> str:
        """Return the id of a response that has ended."""
        made = self.asked("/v1/responses", input=text, max_output_tokens=5, **body)
        while made["status"] in ("queued", "in_progress"):
            made = self.send(f"/v1/responses/{made['id']}")
        return str(made["id"])

    def conversation(self, **metadata: str) -> str:
        return str(self.send("/v1/conversations", {"metadata": metadata})["id"])

    def ask_everywhere(self, mark: str, value: bool) -> None:
        """Send texts to each endpoint, with the opt-out as it allows it."""
        told = {"do_not_collect": "true" if value else "false"}
        self.asked("/v1/chat/completions", messages=_said(f"{mark} chat"), max_tokens=5, metadata=told)
        self.asked("/v1/completions", prompt=[f"{mark} one", f"{mark} two"], max_tokens=5, metadata=told)
        own: dict[str, Any] = {"do_not_collect": value}
        self.asked("/v1/messages", messages=_said(f"{mark} anthropic"), max_tokens=5, metadata=own)
        first = self.responded(f"{mark} response", metadata=told)
        self.responded(f"{mark} following", previous_response_id=first)
        self.responded(f"{mark} background", background=True, metadata=told)
        made = self.conversation(**told)
        for word in ("made", "later"):
            self.responded(f"{mark} {word}", conversation=made)
        changed = self.conversation()
        self.responded(f"before {mark}", conversation=changed)
        self.send(f"/v1/conversations/{changed}", {"metadata": told})
        self.responded(f"{mark} changed", conversation=changed)
        self.send(f"/v1/conversations/{changed}", {"metadata": {}})
        self.responded(f"{mark} again", conversation=changed)


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


WORDS = "chat", "one", "two", "anthropic", "response", "following", "background", "made", "later", "changed", "again"


@pytest.mark.essential
def test_a_caller_of_every_http_endpoint_and_the_command_line_can_keep_a_text_out(tmp_path: Path) -> None:
    out = tmp_path / "collected"
    with collecting(out) as local, gateway_process(local.orchestrator_address) as gateway:
        http = Http(gateway)
        conversation = session_of(http.conversation(do_not_collect="true"))
        assert conversation is not None
        with Client(local.orchestrator_address) as client:
            client.get_session(conversation).send("secret grpc", ANSWER).wait()
        http.ask_everywhere("secret", True)
        http.ask_everywhere("free", False)
        for mark, flags in (("secret", ["--do-not-collect"]), ("free", [])):
            said = run("chat", "--address", local.orchestrator_address, "--max-tokens", "5", *flags, text=f"{mark} cli")
            assert said.returncode == 0, said.stderr
    marks = {mark: {f"{mark} {word}" for word in (*WORDS, "grpc", "cli")} for mark in ("secret", "free")}
    found = collected(out, "before secret", "before free", *marks["secret"], *marks["free"])
    assert found == {"before secret", "before free", *marks["free"]} - {"free grpc"}
