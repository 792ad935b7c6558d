"""The last export of a process. A collector that is away must not keep the process from ending."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

LAST_EXPORT_SECONDS = 2.0
"""Seconds for the last export. An exporter by itself retries a batch for ten seconds or longer."""


def export_last(what: str, work: Callable[[], object], seconds: float = LAST_EXPORT_SECONDS) -> None:
    """Run the last export of ``what`` in a thread, and wait at most ``seconds`` for it."""
    thread = threading.Thread(target=work, name=f"last {what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        log.warning(
            "the last %s could not be exported within %g s and are lost: check that the collector is reachable",
            what,
            seconds,
        )
