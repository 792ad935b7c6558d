"""The whole life of a draft in a small session: it drifts, is seen, trained again, and replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving.chaos.clock import can_be_set
from proving.draft_upkeep.scale import SMALL
from proving.draft_upkeep.session import Session


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not can_be_set(), reason="there is no C compiler to make a clock with that can be set")
def test_a_draft_that_drifts_is_seen_trained_again_and_replaced_under_traffic(tmp_path: Path) -> None:
    lines: list[str] = []
    outcome = Session(tmp_path, SMALL, lines.append).run()
    told = "\n".join(lines)
    assert outcome.usual > 0.9 and outcome.changed < 0.65, told
    assert outcome.drift_status == 1 and "the requests of lookup have changed" in told, told
    assert outcome.alert is not False, told
    assert outcome.is_kept and outcome.replaced > outcome.changed + 0.1, told
    assert outcome.repeated_count > 0 and outcome.changed_count == 0, told
