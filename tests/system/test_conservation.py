"""After a thousand turns, a third of them cancelled or abandoned at random, every page is accounted
for."""

from __future__ import annotations

import random
import threading
import time

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.v1 import orchestrator_pb2
from tests.system.conftest import load_of, settled_load_of

LEASE_SECONDS = 8.0
THREADS = 8
TURNS_EACH = 125


def one_client(address: str, seed: int, done: list[str]) -> None:
    """Chats of a few turns: most end by themselves, a third are cancelled or abandoned somewhere on
    the way."""
    rng = random.Random(seed)
    with Client(address) as client:
        chat = client.chat()
        for _ in range(TURNS_EACH):
            settings = Settings(max_token_count=rng.randint(1, 60), draft_length=rng.choice((0, 1, 4, 8)))
            reply = chat.send("x" * rng.randint(1, 60), settings)
            pieces = iter(reply)
            fate = rng.choice(("finish", "finish", "finish", "finish", "cancel", "abandon"))
            for _ in range(rng.randint(0, 3)):
                next(pieces, None)
            if fate == "cancel":
                chat.cancel()
            if fate == "abandon":
                chat.close()
                chat = client.chat()
            else:
                for _ in pieces:
                    pass
                if rng.random() < 0.1:
                    chat.close()
                    chat = client.chat()
            done.append(fate)
        chat.close()


def delete_all_sessions(client: Client) -> None:
    while sessions := client.stub.ListSessions(orchestrator_pb2.ListSessionsRequest()).sessions:
        for session in sessions:
            client.stub.DeleteSession(orchestrator_pb2.DeleteSessionRequest(session_id=session.id))


def test_a_thousand_turns_leave_only_leased_pages_and_then_none() -> None:
    pair = PairSettings(
        target="arithmetic:",
        draft="arithmetic:agreement=0.8",
        target_flags=["--max-lease-seconds", str(LEASE_SECONDS)],
        draft_flags=["--max-lease-seconds", str(LEASE_SECONDS)],
    )
    with LocalServices(pair) as local:
        done: list[str] = []
        threads = [
            threading.Thread(target=one_client, args=(local.orchestrator_address, seed, done))
            for seed in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == THREADS * TURNS_EACH == 1000
        assert 200 < sum(fate != "finish" for fate in done) < 450
        addresses = (local.verifier_address, local.draft_address)
        held = [settled_load_of(address).held_page_count for address in addresses]
        assert min(held) > 0, "the last sessions are still there"
        # Once no session is left no page may be held, though leases still run: only a session
        # holds pages.
        with Client(local.orchestrator_address) as client:
            delete_all_sessions(client)
        for address in addresses:
            load = settled_load_of(address)
            assert (load.running_count, load.waiting_count, load.held_page_count) == (0, 0, 0)
            assert load.free_page_count + load.cached_page_count == load.page_count
        deadline = time.monotonic() + LEASE_SECONDS + 10
        while any(load_of(address).sequence_count for address in addresses):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for address in addresses:
            assert load_of(address).held_page_count == 0
