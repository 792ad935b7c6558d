"""What a caller keeps out stays out of shards: in forks, after a kill, in another process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.sessions.conversation.codec import Codec
from slipstream.cli.local import LocalServices
from slipstream.client import Client, Settings
from slipstream.distilling.records import read_shards
from slipstream.hosting.tokenizer_files import load_tokenizer_files
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
        replace(PAPER_PAIR, target=TARGET, draft="", target_flags=flags, orchestrator_flags=LEASE, store=store)
    )


def collected(out: Path, *marks: str) -> set[str]:
    """Return which of these words are in the texts of a folder."""
    codec = Codec.from_files(load_tokenizer_files(TARGET).files)
    texts = [codec.text_with_special_tokens(record.tokens.tolist()) for record in read_shards(out)]
    return {mark for mark in marks if any(mark in text for text in texts)}


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
