"""The embedded pair and a gateway, for suites that speak HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import Client

_LOOK_SECONDS = 0.05


@contextmanager
def gateway(draft: str = "embedded", *orchestrator_flags: str) -> Iterator[LocalServices]:
    """Services of the embedded target, with a draft or without, and a gateway in front of them."""
    settings = PairSettings(draft=draft, orchestrator_flags=orchestrator_flags)
    with LocalServices(settings, gateway=free_address(), report=print) as services:
        yield services


@contextmanager
def draft_killed(services: LocalServices, after_tokens: int) -> Iterator[threading.Event]:
    """Kill the draft once so many tokens were generated inside. The event tells that it
    happened."""
    killed, over = threading.Event(), threading.Event()

    def watch() -> None:
        with Client(services.orchestrator_address) as client:
            while not over.is_set():
                processes = client.status().processes
                if sum(process.generated_token_count for process in processes) >= after_tokens:
                    services.services["draft"].process.kill()
                    killed.set()
                    return
                time.sleep(_LOOK_SECONDS)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield killed
    finally:
        over.set()
        watching.join()
