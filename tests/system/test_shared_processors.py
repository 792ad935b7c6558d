"""A draft and a verifier that compute on the same processors, as on anybody's own machine: rounds do not overlap there."""

from __future__ import annotations

import os
from collections import Counter

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings

OPEN = Settings(draft_length="adaptive", proposer="draft", temperature=0, max_token_count=40)


def ways_of(threads: int) -> Counter[str]:
    """How many rounds of a fresh embedded pair drafted in each way, each model computing with so many threads."""
    flags = ["--threads", str(threads)]
    pair = PairSettings(target="embedded", draft="embedded", target_flags=flags, draft_flags=flags)
    ways: Counter[str] = Counter()
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        for name in ("join", "split", "strip", "lower", "upper", "find", "index", "count", "title", "zfill", "center"):
            ways.update(client.generate(f"What does str.{name} do?", OPEN).wait().overlap_counts)
        said = local.services["orchestrator"].log.read_text()
    assert ("short of them" in said) is (2 * threads > len(os.sched_getaffinity(0)))
    return ways


def test_rounds_overlap_only_where_there_are_processors_for_both() -> None:
    processors = len(os.sched_getaffinity(0))
    ways = ways_of(processors)
    assert ways["none"] and not ways["enumerate"] and not ways["run_ahead"], ways
    if processors > 1:
        ways = ways_of(processors // 2)
        assert ways["enumerate"] + ways["run_ahead"], ways  # the first round at least, whose draft nobody knows yet
