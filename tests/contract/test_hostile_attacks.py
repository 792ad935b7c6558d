"""An attack on a server leaves nothing of its connections behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from proving.hostile.attacks import ATTACKS, attack


@pytest.fixture
def closing_server() -> Iterator[tuple[str, list[int]]]:
    """The address of a server that ends each connection at once, and how many timers ran at
    each."""
    timers: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_each() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.recv(1)
                timers.append(sum(isinstance(each, threading.Timer) for each in threading.enumerate()))

        thread = threading.Thread(target=close_each)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", timers
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_keeps_one_timer_however_many_connections_it_makes(
    name: str, closing_server: tuple[str, list[int]]
) -> None:
    address, timers = closing_server
    assert attack(name, address, 0.3) >= 1
    assert max(timers) <= 1
