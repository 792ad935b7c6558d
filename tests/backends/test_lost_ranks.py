"""Four ranks give the same bits, and a rank that is killed or frozen ends the group."""

from __future__ import annotations

import signal

import pytest
import torch

from slipstream.engine.errors import RankGroupError
from slipstream.engine.model import Segment
from slipstream.hosting.tokenizer_files import embedded_directory
from tests.equal_bits import Recorder, check_equal_bits
from tests.ranks import Ranks, check_texts, one_rank


def test_four_ranks_serve_the_embedded_target_until_one_is_killed() -> None:
    ranks = Ranks(4)
    try:
        backend = ranks.load(embedded_directory("target"), "float32")
        recorder = Recorder(backend)
        check_equal_bits(recorder)
        check_texts(recorder, one_rank(embedded_directory("target")))
        ranks.processes[1].kill()
        with pytest.raises(RankGroupError, match=r"^another rank of 4 is gone or does not answer: \w[^.]* \[127"):
            backend.forward([Segment([1], 0, [1], 1)])
        with pytest.raises(RankGroupError, match=r"^rank 0 of 4 cannot go on: another rank"):  # so the service ends
            backend.erase_pages([1])
    finally:
        ranks.kill()


def test_a_rank_that_freezes_fails_the_call() -> None:
    ranks = Ranks(2, step_timeout=2)
    try:
        ranks.processes[0].send_signal(signal.SIGSTOP)
        with (
            pytest.raises(
                RankGroupError, match=r"^another rank of 2 is gone or does not answer: Timed out waiting 2000ms"
            ),
            ranks.group.in_step(),
        ):
            ranks.group.sum(torch.ones(8, 8))
        with pytest.raises(RankGroupError, match=r"^rank 0 of 2 cannot go on: another rank"):
            ranks.group.in_step().__enter__()
    finally:
        ranks.kill()
