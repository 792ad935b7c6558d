"""What both clients make of streams that break, deadlines that pass and replies that are left."""

from __future__ import annotations

import gc
import shutil
import subprocess
import threading
from pathlib import Path

import grpc
import pytest

from slipstream.client import PeerError, Reply
from slipstream.errors import Code, SlipstreamError
from slipstream.v1 import orchestrator_pb2 as pb
from tests.either_client import KINDS, connected, until
from tests.fake_orchestrator import (
    TEXT,
    TOKENS,
    Breaking,
    FakeOrchestrator,
    dies_after,
    ends_after,
    fails_after,
    leaves_out,
    serving,
)

pytestmark = pytest.mark.parametrize("kind", KINDS)


def fail_in_mid_loop(reply: Reply) -> None:
    for _ in reply:
        raise ZeroDivisionError


BREAKINGS = {
    "before anything": [dies_after(0)],
    "after it began": [dies_after(1)],
    "in mid-turn": [dies_after(5)],
    "before the end": [dies_after(21)],
    "without a last event": [ends_after(5)],
    "with a hole": [leaves_out(5)],
    "again and again": [dies_after(0), ends_after(0), dies_after(3), dies_after(1), leaves_out(4), ends_after(2)],
}


@pytest.mark.parametrize("breakings", BREAKINGS.values(), ids=BREAKINGS.keys())
def test_a_reply_goes_on_where_its_stream_broke(kind: str, breakings: list[Breaking]) -> None:
    fake = FakeOrchestrator()
    with serving(fake) as address, connected(kind, address) as client:
        chat = client.create_session()
        fake.breakings = list(breakings)
        reply = chat.send("x")
        assert "".join(reply) == TEXT
        assert reply.result.token_ids == TOKENS
        assert reply.result.finish_reason == "MAX_TOKENS"
        assert len(fake.turns) == 1
        assert not any(isinstance(request, pb.CancelTurnRequest) for request in fake.asked)
        fake.breakings = list(breakings)
        assert client.generate([1, 2]).wait().token_ids == TOKENS


def test_a_turn_that_fails_raises_what_the_server_said_after_all_of_its_text(kind: str) -> None:
    class PagesError(SlipstreamError):
        code = Code.RESOURCE_EXHAUSTED
        reason = "OUT_OF_PAGES"
        retry_after = 1.5

    fake = FakeOrchestrator(breakings=[fails_after(5, PagesError("no page is free", free=0))])
    with serving(fake) as address, connected(kind, address) as client:
        reply = client.generate("x")
        pieces: list[str] = []
        with pytest.raises(PeerError, match="no page is free") as caught:
            pieces.extend(reply)
        assert (caught.value.code, caught.value.reason) == (Code.RESOURCE_EXHAUSTED, "OUT_OF_PAGES")
        assert (caught.value.retry_after, caught.value.metadata) == (1.5, {"free": "0"})
        assert reply.result.text == TEXT[:8] + "..."
        assert reply.result.generated_token_count == 8
        assert len(fake.asked) == 1  # it has ended: nothing is asked again, nothing cancelled


def test_a_server_that_stays_away_is_given_up_after_the_time_for_reconnecting(kind: str) -> None:
    fake = FakeOrchestrator(breakings=[dies_after(5)])
    lost: list[PeerError] = []
    with serving(fake) as address, connected(kind, address, reconnect=0.5, on_lost=lost.append) as client:
        fake.breakings += [dies_after(0)] * 50
        with pytest.raises(PeerError) as caught:
            client.generate("x").wait()
        assert caught.value.code is Code.UNAVAILABLE
        assert len(lost) == 1


def test_a_turn_whose_deadline_passes_is_cancelled(kind: str) -> None:
    fake = FakeOrchestrator(pause_at=10)
    with serving(fake) as address, connected(kind, address, timeout=3.0) as client:
        chat = client.create_session(timeout=60)
        reply = chat.send("x")
        with pytest.raises(PeerError) as caught:
            reply.wait()
        assert caught.value.code is Code.DEADLINE_EXCEEDED
        assert reply.result.token_ids == TOKENS[:10]
        assert fake.cancelled[1].is_set()


def test_a_deadline_that_passes_before_the_turn_is_known_cancels_it_too(kind: str) -> None:
    fake = FakeOrchestrator(silent=True, pause_at=0)
    with serving(fake) as address, connected(kind, address) as client:
        chat = client.create_session()
        with pytest.raises(PeerError) as caught:
            chat.send("x", timeout=3.0).wait()
        assert caught.value.code is Code.DEADLINE_EXCEEDED
        assert fake.turns.keys() and fake.cancelled[1].is_set()


def test_a_deadline_holds_while_the_server_is_away(kind: str) -> None:
    fake = FakeOrchestrator(breakings=[dies_after(5)])
    with serving(fake) as address, connected(kind, address) as client:
        fake.breakings += [dies_after(0)] * 100
        with pytest.raises(PeerError) as caught:
            client.generate("x", timeout=1.0).wait()
        assert caught.value.code is Code.DEADLINE_EXCEEDED


def test_credentials_make_it_tls(kind: str, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: no certificate to try")
    flags = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test".split()
    named = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, *flags, *named], check=True, capture_output=True)
    theirs = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    ours = grpc.ssl_channel_credentials(certificate.read_bytes())
    with serving(FakeOrchestrator(), theirs) as address:
        with connected(kind, address, credentials=ours) as client:
            assert client.generate("x").wait().token_ids == TOKENS
        with connected(kind, address) as plaintext, pytest.raises(PeerError) as caught:
            plaintext.generate("x").wait()
        assert caught.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize("way", ["break", "close", "with", "exception"])
def test_a_reply_that_is_left_ends_its_turn(kind: str, way: str) -> None:
    fake = FakeOrchestrator(pause_at=10)
    with serving(fake) as address, connected(kind, address) as client:
        reply = client.create_session().send("x")
        if way == "break":
            for _ in reply:
                break
        elif way == "close":
            reply.close()
        elif way == "with":
            with reply:
                pass
        else:
            with pytest.raises(ZeroDivisionError):
                fail_in_mid_loop(reply)
        until(lambda: fake.cancelled[1].is_set())
        with pytest.raises(PeerError) as caught:
            reply.wait()
        assert caught.value.reason == "REPLY_CLOSED"


def test_a_reply_that_is_left_at_once_ends_its_turn_though_nothing_was_heard_of_it(kind: str) -> None:
    fake = FakeOrchestrator(silent=True, pause_at=0)
    with serving(fake) as address, connected(kind, address) as client:
        reply = client.create_session().send("x")
        until(lambda: bool(fake.turns))
        reply.close()
        assert fake.cancelled[1].is_set()


def test_closing_the_client_ends_the_turns_of_unread_replies(kind: str) -> None:
    fake = FakeOrchestrator(pause_at=10)
    with serving(fake) as address:
        with connected(kind, address) as client:
            replies = [client.generate("x"), client.create_session().send("y")]
        assert fake.cancelled[1].is_set() and fake.cancelled[2].is_set()
        del replies


def test_a_detached_reply_leaves_its_turn_alone_and_it_can_be_watched_on(kind: str) -> None:
    fake = FakeOrchestrator()
    with serving(fake) as address, connected(kind, address) as client:
        reply = client.generate("x")
        pieces = iter(reply)
        first = [next(pieces) for _ in range(3)]
        reply.detach()
        result = client.watch("s", reply.result.turn, len(reply.result.token_ids)).wait()
        assert "".join(first) + result.text == TEXT
        assert reply.result.token_ids + result.token_ids == TOKENS
        assert not any(isinstance(request, pb.CancelTurnRequest) for request in fake.asked)


def test_leaving_a_watch_leaves_the_turn_alone(kind: str) -> None:
    fake = FakeOrchestrator(pause_at=10)
    with serving(fake) as address, connected(kind, address) as client:
        with client.watch("s", 1) as reply:
            next(iter(reply))
        with pytest.raises(PeerError), client.watch("s", 1, timeout=0.3) as late:
            late.wait()
    assert not fake.cancelled[1].is_set()


def test_the_same_message_sent_again_does_not_end_the_reply_it_takes_over(kind: str) -> None:
    fake = FakeOrchestrator(pause_at=10)
    with serving(fake) as address, connected(kind, address) as client:
        chat = client.create_session()
        replies = [chat.send("x", request_id="mine") for _ in range(2)]
        assert not fake.cancelled.get(1, threading.Event()).is_set()
        replies[1].cancel()
        result = replies[1].wait()
        assert (result.finish_reason, result.turn) == ("CANCELLED", 1)


def test_a_reply_may_be_cancelled_from_another_thread_before_anything_was_heard(kind: str) -> None:
    fake = FakeOrchestrator(pause_at=0)
    with serving(fake) as address, connected(kind, address) as client:
        reply = client.create_session().send("x")
        reading = threading.Thread(target=reply.wait)
        reading.start()
        reply.cancel()
        reading.join(60)
        assert not reading.is_alive()
        assert reply.result.finish_reason == "CANCELLED"


def test_a_reply_closed_from_another_thread_wakes_its_reader(kind: str) -> None:
    fake = FakeOrchestrator(pause_at=4)
    caught: list[PeerError] = []

    with serving(fake) as address, connected(kind, address) as client:
        reply = client.create_session().send("x")

        def read() -> None:
            try:
                reply.wait()
            except PeerError as error:
                caught.append(error)

        reading = threading.Thread(target=read)
        reading.start()
        until(lambda: len(reply.result.token_ids) == 4)
        reply.close()
        reading.join(60)
        assert [error.reason for error in caught] == ["REPLY_CLOSED"]


def test_nothing_is_left_of_a_client_whose_calls_failed(kind: str) -> None:
    before = threading.active_count()
    for _ in range(3):
        with connected(kind, "127.0.0.1:9") as client:
            for call in (client.chat, client.create_session, client.server_info, client.generate("x").wait):
                with pytest.raises(PeerError) as caught:
                    call()
                assert caught.value.code is Code.UNAVAILABLE
    until(lambda: threading.active_count() <= before + (kind == "asyncio"))  # grpc.aio keeps one poller for the process


def test_nothing_is_left_of_a_client_that_worked_and_was_closed_in_mid_turn(kind: str) -> None:
    fake = FakeOrchestrator(pause_at=10)
    with serving(fake) as address:
        with connected(kind, address) as client:
            next(iter(client.generate("x")))
        gc.collect()
        until(lambda: not [name for name in map(str, threading.enumerate()) if "slipstream" in name or "spin" in name])
