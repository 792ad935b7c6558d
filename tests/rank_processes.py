"""Stand-ins for the processes of a group: rank 0 starts the others, and none has a model.

Run as a script, with PATIENCE and what the other ranks do: wait, refuse, or fail. Each rank prints
a line once it works; rank 0 prints its own once it enforces.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from slipstream.errors import SlipstreamError
from slipstream.hosting.ranks.follower import follow_rank_0
from slipstream.hosting.ranks.local_ranks import LocalRanks
from slipstream.hosting.ranks.place import place_of

SIZE = 3


def main(patience: float, does: str) -> None:
    """Be the rank that the environment says."""
    place = place_of(SIZE, os.environ)
    _say(f"rank {place.rank} is {os.getpid()}")
    if place.rank:
        follow_rank_0(f"verifier rank {place.rank}", lambda: _work(does if place.rank == 1 else "wait"))
        return
    asked = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    with LocalRanks("verifier", place, [sys.executable, __file__, str(patience), does], patience) as ranks:
        ranks.enforce()
        while not asked:
            time.sleep(0.02)
        time.sleep(0.3)  # it drains, and the others must not have ended
        _say("drained")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # in one piece, for all ranks write to one pipe
    sys.stdout.flush()


def _work(does: str) -> None:
    if does == "refuse":
        raise SlipstreamError("the model is of a kind that ranks cannot share")
    if does == "fail":
        raise RuntimeError("no memory")
    _say("works")
    time.sleep(600)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
