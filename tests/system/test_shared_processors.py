"""A draft and a verifier that compute on the same processors, as on a personal machine: rounds do
not overlap there."""

from __future__ import annotations

import os
from collections import Counter

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings

OPEN = Settings(draft_length="adaptive", proposer="draft", temperature=0, max_token_count=40)
OF_PAPER = "arithmetic:ends=0&vocabulary=259&forward_ms="


def is_said_to_be_short(local: LocalServices) -> bool:
    """Whether the orchestrator found the pair short of processors."""
    return "too few for both" in local.services["orchestrator"].log.read_text()


def ways_of(pair: PairSettings, *, short: bool) -> Counter[str]:
    """How many rounds of a fresh pair drafted in each way, which must have been found ``short`` of
    processors or not."""
    ways: Counter[str] = Counter()
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        for name in ("join", "split", "strip", "lower", "upper", "find", "index", "count", "title", "zfill", "center"):
            ways.update(client.generate(f"What does str.{name} do?", OPEN).wait().overlap_counts)
        assert is_said_to_be_short(local) is short
    return ways


def embedded_pair(threads: int) -> PairSettings:
    """Each of whose models computes with so many threads."""
    flags = ["--threads", str(threads)]
    return PairSettings(target="embedded", draft="embedded", target_flags=flags, draft_flags=flags)


def test_rounds_wait_for_one_another_where_both_need_every_processor() -> None:
    ways = ways_of(embedded_pair(len(os.sched_getaffinity(0))), short=True)
    assert ways["none"] and not ways["enumerate"] and not ways["run_ahead"], ways


def test_a_pair_with_processors_for_both_is_not_short_of_them() -> None:
    """Whether its rounds overlap is what they take to decide: on a busy machine a small draft may
    not pay at all."""
    processors = len(os.sched_getaffinity(0))
    if processors > 1:
        with LocalServices(embedded_pair(processors // 2)) as local, Client(local.orchestrator_address) as client:
            answer = client.generate(
                "What does str.join do?", Settings(draft_length=4, temperature=0, max_token_count=8)
            )
            assert sum(answer.wait().drafted_per_position)  # by now both are known
            assert not is_said_to_be_short(local)


def test_rounds_overlap_where_nothing_is_shared() -> None:
    pair = PairSettings(target=f"{OF_PAPER}25", draft=f"{OF_PAPER}3&agreement=0.8&spread=0.6")
    ways = ways_of(pair, short=False)
    assert ways["enumerate"] + ways["run_ahead"], ways
