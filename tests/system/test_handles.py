"""Handles in real processes belong to the peer that opened them: a killed peer leaves nothing, and
a flooding peer keeps no other out."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

import grpc
import pytest

from slipstream.agreed import PEER_KEY
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from slipstream.wire.v1 import draft_pb2, draft_pb2_grpc, model_pb2, verifier_pb2, verifier_pb2_grpc
from tests.system.conftest import (
    PAPER_PAIR,
    first_propose,
    first_verify,
    load_of,
    new_handle,
    paper_tokens,
    stated,
    verify_one,
)
from tests.system.test_bad_input import reason_of

GRACE = 6.0
PROMPT = [10, 20, 30, 40] * 30
MOST = 64
AT_ONCE = 16


def verify_all(
    channel: grpc.Channel, items: Sequence[verifier_pb2.VerifyItem], key: str | None = None
) -> list[verifier_pb2.VerifyResult]:
    """The items' results in order, over one stream of the peer with this key."""
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    metadata = () if key is None else ((PEER_KEY, key),)
    results = {}
    for response in stub.Verify(iter([verifier_pb2.VerifyRequest(items=items)]), metadata=metadata):
        results.update({result.handle: result for result in response.results})
    return [results[item.handle] for item in items]


def wait_until_nothing_is_held(address: str, seconds: float) -> None:
    """For at most so long."""
    deadline = time.monotonic() + seconds
    while count := load_of(address).held_page_count:
        assert time.monotonic() < deadline, f"{count} pages are held"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def short() -> Iterator[LocalServices]:
    """A pair whose services give what is left of an orchestrator back after the grace, and hold few
    sequences."""
    flags = [
        *PAPER_PAIR.target_flags,
        *("--peer-grace-seconds", str(GRACE), "--max-sequence-count", str(MOST), "--default-lease-seconds", "600"),
    ]
    patient = ["--draft-deadline-seconds", "30"]  # a flood makes a draft late and must not make it fail
    with LocalServices(
        PairSettings(
            PAPER_PAIR.target, PAPER_PAIR.draft, target_flags=flags, draft_flags=flags, orchestrator_flags=patient
        )
    ) as local:
        yield local


def test_an_orchestrator_that_is_killed_leaves_no_page_behind_for_longer_than_the_grace(short: LocalServices) -> None:
    addresses = (short.verifier_address, short.draft_address)
    with Client(short.orchestrator_address) as client:
        chats = [client.chat(settings=Settings(max_token_count=40, draft_length=4)) for _ in range(3)]
        for chat in chats:
            chat.send("something to be remembered by its pages, which are sixteen tokens long").wait()
        reply = client.generate(PROMPT, Settings(max_token_count=4000, draft_length=4))
        next(iter(reply))
        short.services["orchestrator"].process.send_signal(signal.SIGKILL)
        short.services["orchestrator"].process.wait()
    for address in addresses:
        assert load_of(address).held_page_count > 0, "it may come back"
    for address in addresses:
        wait_until_nothing_is_held(address, GRACE + 30)
        assert load_of(address).sequence_count == 0
        assert load_of(address).cached_page_count > 0
    short.start_orchestrator().wait_until_healthy()
    with Client(short.orchestrator_address) as client:
        assert client.generate(PROMPT, Settings(max_token_count=20)).wait().token_ids == paper_tokens(PROMPT, 20)


def test_an_idle_chat_keeps_its_pages_beyond_the_grace_while_its_orchestrator_lives(
    short: LocalServices,
) -> None:
    with Client(short.orchestrator_address) as client, client.chat(settings=Settings(max_token_count=40)) as chat:
        chat.send("something to be remembered by its pages, which are sixteen tokens long").wait()
        before = load_of(short.verifier_address).held_page_count
        time.sleep(GRACE + 2)
        assert load_of(short.verifier_address).held_page_count == before > 0


class Flood:
    """A peer that opens handles as fast as it can while the block runs, with items that are refused
    or answered in turn."""

    def __init__(self, local: LocalServices) -> None:
        self._local = local
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failure: Exception | None = None
        self.count = 0

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        metadata = ((PEER_KEY, "a flood"),)
        with (
            grpc.insecure_channel(self._local.verifier_address) as verifier,
            grpc.insecure_channel(self._local.draft_address) as draft,
        ):
            verify = verifier_pb2_grpc.VerifierServiceStub(verifier).Verify
            propose = draft_pb2_grpc.DraftServiceStub(draft).Propose
            try:
                while not self._over.is_set():
                    unused = [model_pb2.OpenSequence() for _ in range(AT_ONCE)]
                    items = [verifier_pb2.VerifyItem(handle=new_handle(), open=terms) for terms in unused]
                    items += [first_verify(handle=new_handle(), round=1, tail=[5, 6]) for _ in range(AT_ONCE)]
                    deque(verify(iter([verifier_pb2.VerifyRequest(items=items)]), metadata=metadata), maxlen=0)
                    asked = [first_propose(handle=new_handle(), round=1, tail=[5], draft_length=1) for _ in unused]
                    deque(propose(iter([draft_pb2.ProposeRequest(items=asked)]), metadata=metadata), maxlen=0)
                    self.count += len(items)
            except grpc.RpcError as error:
                self.failure = error


@pytest.mark.essential
def test_a_flood_of_handles_keeps_no_orchestrator_from_opening_its_own(short: LocalServices) -> None:
    with Flood(short) as flood, Client(short.orchestrator_address) as client:
        while flood.count < 2 * MOST:
            assert flood.failure is None
            time.sleep(0.05)
        before = flood.count
        results: list[Result] = []
        while len(results) < 5 or flood.count <= before + MOST:  # they have all the time to be driven out
            assert flood.failure is None
            results.append(client.generate(PROMPT, Settings(max_token_count=200, draft_length=4)).wait())
        for address in (short.verifier_address, short.draft_address):
            assert load_of(address).sequence_count <= MOST
    for result in results:
        assert result.token_ids == paper_tokens(PROMPT, 200)
        assert result.draft_count > 0 and result.draft_failure_count == 0


def test_a_handle_is_known_to_its_peer_alone(paper: LocalServices) -> None:
    handle, item = new_handle(), verifier_pb2.VerifyItem
    with grpc.insecure_channel(paper.verifier_address) as channel:
        (first,) = verify_all(channel, [first_verify(handle=handle, round=1, tail=[5, 6])], key="ours")
        again = item(handle=handle, round=1, tail=[5, 6], **stated())
        for stranger in ("theirs", "", None):
            (refused,) = verify_all(channel, [again], key=stranger)
            assert reason_of(refused) == "UNKNOWN_HANDLE"
            verify_all(channel, [item(handle=handle, round=2, close=model_pb2.CloseSequence())], key=stranger)
        assert verify_all(channel, [again], key="ours") == [first]
        (closed,) = verify_all(channel, [item(handle=handle, round=2, close=model_pb2.CloseSequence())], key="ours")
        assert reason_of(closed) == ""
        assert reason_of(verify_all(channel, [again], key="ours")[0]) == "UNKNOWN_HANDLE"
        assert reason_of(verify_one(channel, again)) == "UNKNOWN_HANDLE"
