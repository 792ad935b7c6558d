"""The last words of a process. A collector that is away must not keep it from ending."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

LAST_EXPORT_SECONDS = 2.0
"""For what has not been exported yet. An exporter by itself goes on trying for ten seconds a batch,
and longer."""


def export_last(what: str, work: Callable[[], object], seconds: float = LAST_EXPORT_SECONDS) -> None:
    """Do what is left to do, but wait no longer for it than that."""
    thread = threading.Thread(target=work, name=f"last {what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        log.warning(
            "the last %s could not be exported within %g s and are lost: is the collector there?", what, seconds
        )
