"""A draft and a verifier that compute on the same processors, as on a personal machine, are found
short of them."""

from __future__ import annotations

import os

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings

ASKED = Settings(draft_length=4, temperature=0, max_token_count=8)


def is_said_to_be_short(threads: int) -> bool:
    """Whether the orchestrator finds a pair whose models compute with so many threads each short of
    processors."""
    flags = ["--threads", str(threads)]
    pair = PairSettings(target="embedded", draft="embedded", target_flags=flags, draft_flags=flags)
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        client.generate("What does str.join do?", ASKED).wait()  # by now both are known
        return "too few for both" in local.services["orchestrator"].log.read_text()


def test_a_pair_that_needs_every_processor_twice_is_short_of_them() -> None:
    assert is_said_to_be_short(len(os.sched_getaffinity(0)))


def test_a_pair_with_processors_for_both_is_not_short_of_them() -> None:
    processors = len(os.sched_getaffinity(0))
    if processors > 1:
        assert not is_said_to_be_short(processors // 2)
