"""Polling of grpc's sockets in a service's process.

This module does not import grpc, which reads the environment when it is imported.
"""

from __future__ import annotations

import os

_VARIABLE = "GRPC_EXPERIMENTS"
_DIRECTLY = "-event_engine_client,-event_engine_listener"


def poll_directly() -> None:
    """Let the thread that waits for grpc's events poll the sockets itself.

    By default grpc's event engine polls in further threads, and each message passes through two
    more threads. A message of a bare stream there and back takes 0.33 ms with the event engine and
    0.20 ms without it. A GRPC_EXPERIMENTS variable in the environment wins. Call this only in our
    own processes, before grpc is imported.
    """
    os.environ.setdefault(_VARIABLE, _DIRECTLY)
