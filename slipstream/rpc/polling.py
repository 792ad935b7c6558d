"""How grpc waits for its sockets in a service's process. Without grpc itself, which reads this as
it is imported."""

from __future__ import annotations

import os

_VARIABLE = "GRPC_EXPERIMENTS"
_DIRECTLY = "-event_engine_client,-event_engine_listener"


def poll_directly() -> None:
    """Have the thread that waits for grpc's events wait at the sockets itself, unless the
    environment says something else.

    By default an event engine of threads does, and each message then passes through one more on its
    way in and one more on its way out: a bare stream's message there and back takes 0.33 ms with it
    and 0.20 without. Only for processes that are ours as a whole; of no effect once grpc is
    imported.
    """
    os.environ.setdefault(_VARIABLE, _DIRECTLY)
