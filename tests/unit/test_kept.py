"""What a pair has learnt goes into a file and comes back as a beginning; what is not such a file is
left alone."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.processes.knowledge_file import KnowledgeFile
from orchestrator.speculation.acceptance import AcceptanceEstimate
from orchestrator.speculation.kept import NotKeptError
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.plan import Overlap, Regime
from orchestrator.speculation.proposal import Confidence
from tests.scripted_peers import MODEL

ALONE, AHEAD = Regime(Overlap.NONE, 1), Regime(Overlap.RUN_AHEAD, 2)


def taught(rounds: int = 400) -> PairKnowledge:
    """A pair whose draft is right in nine of ten, whose verifier takes 20 ms and whose draft 2 ms a
    step."""
    pair, rng = PairKnowledge(), random.Random(1)
    costs = pair.verifiers["here:1"].costs
    for _ in range(rounds):
        accepted = next((at for at in range(8) if rng.random() > 0.9), 8)
        pair.acceptances[0].observe(8, accepted)
        pair.calibrations[0].observe([Confidence(-0.2, 1.2)] * 8, accepted)
        pair.ngram_acceptance[2].observe(4, 3)
        pair.hits.observe(4, 0)
        pair.sharpening.observe(0.8, 0.6, 8, accepted)
        pair.drafting.observe(1, 8, 0.016, 0.017, ALONE)
        costs.observe(9, 9, 0.020, 0.021, ALONE)
        costs.observe(9, 18, 0.030, 0.033, AHEAD)
    pair.verifiers["there:2"].costs.observe(9, 9, 5.0, 5.0, ALONE)  # asked once
    return pair


def test_what_was_learnt_is_where_another_begins() -> None:
    old, new = taught(), PairKnowledge()
    new.take(json.loads(json.dumps(old.state())))
    costs, was = new.verifiers["elsewhere:3"].costs, old.verifiers["here:1"].costs
    assert costs.at(9, ALONE) == pytest.approx(was.at(9, ALONE))
    assert costs.at(9, AHEAD) == pytest.approx(was.at(9, AHEAD))
    assert costs.share(AHEAD) == pytest.approx(2)
    assert new.drafting.at(8, 1, ALONE) == pytest.approx(old.drafting.at(8, 1, ALONE))
    assert new.acceptance.survivals(8) == pytest.approx(old.acceptance.survivals(8), abs=0.02)
    assert new.ngram_acceptance[2].mean == pytest.approx(old.ngram_acceptance[2].mean, abs=0.02)
    assert new.hits.at(4) == pytest.approx(old.hits.at(4), abs=0.02)
    sure = [Confidence(-0.2, 1.2)]
    assert new.calibrations[0].survivals(sure, [0.5]) == pytest.approx(
        old.calibrations[0].survivals(sure, [0.5]), abs=0.12
    )


def test_what_is_seen_now_soon_weighs_more_than_what_was_learnt_before() -> None:
    new = PairKnowledge()
    new.take(taught(4000).state())
    costs = new.verifiers["here:1"].costs
    for _ in range(30):
        costs.observe(9, 9, 0.060, 0.061, ALONE)
        new.drafting.observe(1, 8, 0.080, 0.081, ALONE)
        for _ in range(8):
            new.acceptance.observe(8, 0)
    assert costs.at(9, ALONE) > 0.055
    assert new.drafting.at(8, 1, ALONE) > 0.07
    assert new.acceptance.mean < 0.55


def test_a_pair_that_has_learnt_nothing_says_so_and_can_be_gone_on_from() -> None:
    new = PairKnowledge()
    new.take(json.loads(json.dumps(PairKnowledge().state())))
    assert not new.drafting.known
    assert new.acceptance.survivals(3) == PairKnowledge().acceptance.survivals(3)


def changed(state: object, rng: random.Random) -> object:
    """The same with one thing in it that cannot be."""
    wrong = rng.choice([None, -1.0, 10**400, 1e300, float("nan"), float("inf"), "x", True, [], {}, [[1]], {"x": 1}])
    if isinstance(state, dict) and state and rng.random() < 0.9:
        name = rng.choice(sorted(state))
        return {**state, name: changed(state[name], rng)}
    if isinstance(state, list) and state and rng.random() < 0.9:
        at = rng.randrange(len(state))
        return [*state[:at], changed(state[at], rng), *state[at + 1 :]]
    return wrong


def test_any_other_file_content_is_refused_or_harmless() -> None:
    state, rng, refused = taught().state(), random.Random(3), 0
    for _ in range(600):
        pair = PairKnowledge()
        try:
            pair.take(changed(state, rng))
        except NotKeptError:
            refused += 1
            continue
        assert 0 <= pair.acceptance.mean <= 1
        assert 0 < pair.verifiers["here:1"].costs.rounds(ALONE)[5] < float("inf")
    assert refused > 400


@pytest.mark.parametrize("count", ["08", "٣", "-8", "0", "9" * 400, "8.0", ""])
def test_a_step_of_a_token_count_that_is_none_is_refused(count: str) -> None:
    state = json.loads(json.dumps(taught().state()))
    state["verifying"]["alone"][count] = [0.02, 3.0]
    with pytest.raises(NotKeptError, match="by token count"):
        PairKnowledge().take(state)


def test_more_accepted_than_tried_is_refused() -> None:
    for name in ("acceptance", "acceptances", "calibrations"):
        state = taught().state()
        kept = state[name]
        kept = kept[0] if isinstance(kept, list) else kept
        assert isinstance(kept, dict)
        kept["_accepted"] = [1e9] * len(kept["_accepted"])
        with pytest.raises(NotKeptError, match="more was accepted"):
            PairKnowledge().take(state)


def test_each_pair_has_its_own_file_which_may_be_absent_broken_or_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = KnowledgeFile(tmp_path / "new", MODEL, MODEL)
    fresh = PairKnowledge()
    assert not file.load(fresh) and not caplog.records
    file.save(taught())
    assert [path.name for path in (tmp_path / "new").iterdir()] == [file.path.name]
    assert file.load(fresh) and fresh.acceptance.mean > 0.85
    others = (replace(MODEL, weights_fingerprint="other"), replace(MODEL, device="cuda:0"))
    assert len({file.path, *(KnowledgeFile(tmp_path / "new", other, MODEL).path for other in others)}) == 3
    assert KnowledgeFile(tmp_path / "new", MODEL, None).path != file.path
    whole = file.path.read_text()
    for broken in (
        "",
        "{",
        "[]",
        '{"format": 1}',
        whole[:-40],
        whole.replace('"format": 1', '"format": 2'),
        "[" * 9000,
    ):
        caplog.clear()
        file.path.write_text(broken)
        fresh = PairKnowledge()
        assert not file.load(fresh) and "are not used" in caplog.text
        assert fresh.state() == PairKnowledge().state()


def test_a_place_that_cannot_be_written_to_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    file = KnowledgeFile(tmp_path / "file", MODEL, MODEL)
    for _ in range(3):
        file.save(taught(10))
    assert caplog.text.count("cannot be saved") == 1


def test_what_is_learnt_is_kept_when_the_process_ends_and_nothing_where_nothing_was(tmp_path: Path) -> None:
    file, pair = KnowledgeFile(tmp_path, MODEL, MODEL), PairKnowledge()

    async def live() -> None:
        task = asyncio.create_task(file.save_periodically(pair))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(live())
    assert not file.path.exists()
    pair.verifiers["here:1"].costs.observe(9, 9, 0.02, 0.021, ALONE)
    asyncio.run(live())
    assert file.path.exists()


def test_an_estimate_fades_as_if_each_observation_took_its_share_of_all_before() -> None:
    """It lets what is new weigh more instead, puts counts in terms of one token now and then, and
    tells them without a change."""
    estimate, rng = AcceptanceEstimate(0.7, window=50), random.Random(0)
    tried, accepted = 0.0, 0.0
    for _ in range(5000):
        drafted = rng.randint(1, 16)
        right = rng.randint(0, drafted)
        looked_at = min(right + 1, drafted)
        tried, accepted = (tried * (1 - looked_at / 50) + looked_at, accepted * (1 - looked_at / 50) + right)
        estimate.observe(drafted, right)
        if rng.random() < 0.01:
            odds = estimate.survivals(8)
            assert estimate.state() == estimate.state()
            assert estimate.survivals(8) == odds
    state = estimate.state()
    assert state["_all_tried"] == pytest.approx(tried) and state["_all_accepted"] == pytest.approx(accepted)
    again = AcceptanceEstimate(0.7, window=50)
    again.take(state)
    assert again.survivals(8) == pytest.approx(estimate.survivals(8))
