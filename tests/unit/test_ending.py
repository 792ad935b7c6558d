"""What a turn's end leaves of a draft, against turns that are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.speculation.ending import Ending

LENGTHS = [0, 1, 2, 7, 40]
SECONDS = 0.01 + 0.001 * np.sqrt(np.arange(66.0))


@pytest.mark.parametrize("mean_length", [1.0, 1.5, 6.0, 30.0])
@pytest.mark.parametrize("length", LENGTHS)
def test_of_turns_that_end_at_any_token_alike_so_much_is_left(mean_length: float, length: int) -> None:
    rng = np.random.default_rng(0)
    lasts = rng.geometric(1 / mean_length, 200_000)  # the number of the turn's last token, from here on
    survived = rng.geometric(0.3, 200_000) - 1
    drafted = np.minimum(lasts, length)
    verified = np.minimum(lasts - 1, length)  # a last token comes as the verification's own
    ending, survivals = Ending(mean_length), 0.7 ** np.arange(1, 65)
    assert ending.drafted(length) == pytest.approx(drafted.mean(), rel=0.02)
    assert ending.tokens(survivals)[length] == pytest.approx(1 + np.minimum(survived, verified).mean(), rel=0.02)
    assert ending.verified(tuple(SECONDS))[1 + length] == pytest.approx(SECONDS[1 + verified].mean(), rel=0.01)
    assert ending.going_on == pytest.approx((lasts > 1).mean(), abs=0.01)


@pytest.mark.parametrize("mean_length", [0.0, 1e12])
def test_where_no_turn_has_ended_yet_or_hardly_any_does_all_is_left(mean_length: float) -> None:
    ending, survivals = Ending(mean_length), 0.7 ** np.arange(1, 65)
    assert ending.verified(tuple(SECONDS)) == pytest.approx(SECONDS)
    assert [ending.drafted(length) for length in LENGTHS] == pytest.approx(LENGTHS)
    assert ending.tokens(survivals) == pytest.approx(np.concatenate(([1.0], 1 + np.cumsum(survivals))))
