"""A draft or a verifier that answers with nonsense harms no turn: the worst kinds, over real
processes."""

from __future__ import annotations

import pytest

from proving.hostile.hostile_peer import HostilePeer
from proving.hostile.judge import Judge
from proving.hostile.nonsense_infos import INFOS
from proving.hostile.peers import HostilePeers
from slipstream.cli.local import LocalServices

WORST = {
    "draft": (
        "proposal of 100,000 tokens",
        "forward of 2^62 seconds",
        "too short by 10^400",
        "100,000 results of nothing",
        "bytes that are no message",
        "message of 60 MiB",
    ),
    "hints": (
        "hint of 100,000 tokens",
        "hint with a token 2^31-1",
        "survival NaN",
        "hint that has seen the future",
        "handle unknown for ever",
        "100,000 results of nothing",
        "60 MiB compressed",
    ),
    "verifier": (
        "next_token 2^31-1",
        "accepted_count past the proposal",
        "logprob of another token",
        "caller blamed for its fields",
        "status whose details are no message",
        "60 MiB compressed",
    ),
    "runs": (
        "position one too near",
        "position 2^31-1",
        "token negative",
        "length reached long before",
        "part after the end",
        "10,000 parts of a token that is none",
        "same result 1,000 times",
        "margin NaN",
    ),
}


@pytest.mark.parametrize("role", WORST)
def test_nonsense_of_a_peer_harms_no_turn(paper: LocalServices, role: str) -> None:
    judge = Judge()
    with HostilePeers(role, paper.verifier_address, paper.draft_address, judge) as part:
        part.run(WORST[role])
        assert part.kind_count == len(WORST[role])
    # Another test may have the machine, and a test's process has what the nursery imported: times
    # and memory are for `make hostile`.
    complaints = [each for each in judge.complaints if " a turn took " not in each and " MiB beside " not in each]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("role", WORST)
def test_there_are_sixty_kinds_of_nonsense_for_each_role(role: str) -> None:
    assert len(HostilePeer.kinds(role)) >= 60
    assert len(INFOS) >= 40
