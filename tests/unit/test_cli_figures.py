"""Rates from two looks: of processes that are restarted, that come and go, and of their peers. None
is ever negative."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.processes.metrics import speculation_readings
from orchestrator.sessions.turns.statistics import per_position
from orchestrator.watching.totals import Totals
from slipstream.cli.counts import OUTCOME, PROPOSER, Counts
from slipstream.cli.figures import Figures, Looks
from slipstream.rpc.wire import duration
from slipstream.telemetry import instruments
from slipstream.v1 import generation_pb2, orchestrator_pb2, status_pb2, trace_pb2

DRAFT = generation_pb2.Speculation.PROPOSER_DRAFT
RECOVERED, PLAIN = trace_pb2.ROUND_OUTCOME_RECOVERED, trace_pb2.ROUND_OUTCOME_PLAIN


def process(uptime: float, number: int = 0, rounds: int = 0, **fields: Any) -> status_pb2.ProcessStatus:
    """After so many rounds of 20 ms, each of them with two drafted tokens of which one was
    accepted."""
    known = {
        "generated_token_count": 2 * rounds,
        "draft_token_count": 2 * rounds,
        "accepted_token_count": rounds,
        "drafted_per_position_counts": [rounds, rounds] if rounds else [],
        "accepted_per_position_counts": [rounds] if rounds else [],
        "verify": duration(0.010 * rounds),
        "verify_queue": duration(0.004 * rounds),
        "verify_network": duration(0.001 * rounds),
        "draft_wait": duration(0.003 * rounds),
        "verifier_idle": duration(0.005 * rounds),
        "rounds": duration(0.020 * rounds),
        "round_counts": [status_pb2.RoundCount(outcome=RECOVERED, proposer=DRAFT, count=rounds)],
    }
    return status_pb2.ProcessStatus(number=number, uptime=duration(uptime), **{**known, **fields})


def look(looks: Looks, now: float, *processes: status_pb2.ProcessStatus) -> Figures:
    return looks.take(orchestrator_pb2.GetStatusResponse(processes=processes), now)


def test_the_first_look_has_sums_and_no_rates() -> None:
    figures = look(Looks(), 50.0, process(100.0, rounds=1000))
    assert figures.rates == Counts()
    assert figures.history == []
    assert figures.total.acceptance == 0.5
    assert figures.total.mean_acceptance_length == 2.0
    assert figures.total.position_acceptances == [1.0, 0.0]


def test_rates_are_what_was_added_over_the_process_own_time() -> None:
    looks = Looks()
    look(looks, 50.0, process(100.0, rounds=1000))
    figures = look(looks, 99.0, process(102.0, rounds=1100))  # the answer was on its way for long: that is not its time
    assert figures.rates["generated_token_count"] == pytest.approx(100.0)
    assert figures.rates.round_count == pytest.approx(50.0)
    assert figures.rates.acceptance == pytest.approx(0.5)
    assert [age for age, _ in figures.history] == [0.0]


def test_a_rounds_time_is_told_apart_and_cancelled_rounds_have_none() -> None:
    cancelled = status_pb2.RoundCount(outcome=trace_pb2.ROUND_OUTCOME_CANCELLED, count=50)
    status = process(1.0, rounds=100)
    status.round_counts.append(cancelled)
    total = look(Looks(), 1.0, status).total
    assert total.round_count == 150
    assert total.seconds_a_round == pytest.approx(
        {"verify": 0.010, "verify_queue": 0.004, "verify_network": 0.001, "draft_wait": 0.003, "rest": 0.002}
    )
    assert total.idle_a_round == pytest.approx(0.005)
    nothing = look(Looks(), 1.0, process(1.0)).total
    assert nothing.seconds_a_round == {}
    assert (nothing.acceptance, nothing.mean_acceptance_length, nothing.idle_a_round) == (None, None, None)


def test_rounds_are_counted_by_outcome_and_proposer() -> None:
    kinds = [
        status_pb2.RoundCount(outcome=RECOVERED, proposer=DRAFT, count=4),
        status_pb2.RoundCount(outcome=RECOVERED, count=3),
        status_pb2.RoundCount(outcome=PLAIN, count=2),
        status_pb2.RoundCount(outcome=77, count=1),  # a newer server's
    ]
    total = look(Looks(), 1.0, process(1.0, round_counts=kinds)).total
    assert total.rounds_by(OUTCOME) == {"recovered": 7, "plain": 2, "77": 1}
    assert total.rounds_by(PROPOSER) == {"draft": 4, "": 6}


def test_a_process_that_was_restarted_has_counted_since_its_beginning() -> None:
    looks = Looks()
    look(looks, 0.0, process(100.0, rounds=1000))
    figures = look(looks, 10.0, process(4.0, rounds=100))
    assert figures.rates.round_count == pytest.approx(25.0)
    assert figures.total.round_count == 100
    again = look(looks, 12.0, process(6.0, rounds=150))
    assert again.rates.round_count == pytest.approx(25.0)
    after_silence = Looks()
    look(after_silence, 0.0, process(100.0))
    assert look(after_silence, 10.0, process(2.0, rounds=50)).rates.round_count == pytest.approx(25.0)


def test_a_restart_between_two_looks_shows_in_the_counts() -> None:
    looks = Looks()
    look(looks, 0.0, process(3.0, rounds=1000))
    figures = look(looks, 60.0, process(50.0, rounds=500))  # longer up than then, and yet fewer
    assert figures.rates.round_count == pytest.approx(10.0)


def test_processes_are_summed_and_one_that_is_new_has_no_rate_yet() -> None:
    looks = Looks()
    look(looks, 0.0, process(10.0, 0, rounds=100, session_count=3), process(20.0, 1, rounds=100, session_count=4))
    figures = look(
        looks,
        2.0,
        process(12.0, 0, rounds=120, session_count=3),
        process(22.0, 1, rounds=140, session_count=5),
        process(1.0, 2, rounds=900, session_count=1),
    )
    assert figures.rates.round_count == pytest.approx(10.0 + 20.0)
    assert [process.rates.round_count for process in figures.processes] == pytest.approx([10.0, 20.0, 0.0])
    assert figures.sum_of("session_count") == 9
    without = look(looks, 4.0, process(14.0, 0, rounds=130))
    assert without.rates.round_count == pytest.approx(5.0)
    back = look(looks, 6.0, process(26.0, 1, rounds=180))
    assert back.rates.round_count == pytest.approx(10.0)


@pytest.mark.parametrize("seed", range(30))
def test_no_rate_is_ever_negative(seed: int) -> None:
    rng, looks, now = random.Random(seed), Looks(), 0.0
    state = {number: [0.0, 0] for number in range(3)}
    for _ in range(60):
        now += 1.0
        for known in state.values():
            if rng.random() < 0.2:
                known[:] = [0.0, 0]
            known[0] += rng.random()
            known[1] += rng.randint(0, 50)
        seen = [number for number in state if rng.random() < 0.8]
        peers = [status_pb2.PeerStatus(role="draft", address="a", load={"step_count": rng.randint(0, 100)})]
        figures = look(looks, now, *(process(state[n][0], n, rounds=int(state[n][1]), peers=peers) for n in seen))
        assert all(rate >= 0 for rate in figures.rates.sums.values())
        assert all(peer.steps_a_second is None or peer.steps_a_second >= 0 for peer in figures.peers)
        assert len(figures.history) <= 60 and all(age < 60 for age, _ in figures.history)


def peer(reachable: bool, steps: int | None, role: str = "verifier") -> status_pb2.PeerStatus:
    load = None if steps is None else status_pb2.PeerLoad(step_count=steps, running_count=2)
    return status_pb2.PeerStatus(role=role, address="127.0.0.1:1", reachable=reachable, load=load)


def test_peers_that_several_processes_ask_are_one_and_its_steps_are_counted_once() -> None:
    looks = Looks()
    look(looks, 0.0, process(1.0, 0, peers=[peer(True, 100)]), process(1.0, 1, peers=[peer(True, 100)]))
    figures = look(looks, 2.0, process(3.0, 0, peers=[peer(True, 140)]), process(3.0, 1, peers=[peer(False, None)]))
    (seen,) = figures.peers
    assert (seen.reachable_from, seen.process_count) == (1, 2)
    assert seen.steps_a_second == pytest.approx(20.0)
    restarted = look(looks, 4.0, process(5.0, 0, peers=[peer(True, 10)]))
    assert restarted.peers[0].steps_a_second == pytest.approx(5.0)
    away = look(looks, 6.0, process(7.0, 0, peers=[peer(False, None)]))
    assert (away.peers[0].load, away.peers[0].steps_a_second) == (None, None)


def test_the_turns_that_have_run_longest_come_first_across_processes() -> None:
    def turn(session_id: str, elapsed: float) -> status_pb2.RunningTurn:
        return status_pb2.RunningTurn(session_id=session_id, total=duration(elapsed), generated_token_count=30)

    figures = look(
        Looks(),
        0.0,
        process(1.0, 0, running_turns=[turn("a", 3.0), turn("b", 1.0)]),
        process(1.0, 1, running_turns=[turn("c", 2.0), turn("d", 0.0)]),
    )
    assert [turn.session_id for turn in figures.turns] == ["a", "c", "b", "d"]
    assert [turn.tokens_per_second for turn in figures.turns] == pytest.approx([10.0, 15.0, 30.0, 0.0])
    assert figures.turns[0].acceptance is None


def test_the_mean_acceptance_length_is_that_of_metrics_and_dashboard() -> None:
    totals = Totals()
    totals.draft_lengths.update({3: 10, 1: 5})
    totals.accepted_lengths.update({3: 4, 1: 7, 0: 4})
    metrics = {each.instrument: next(iter(each.values.values()), None) for each in speculation_readings(totals)}
    expected = 1 + metrics[instruments.ACCEPTED_TOKENS] / metrics[instruments.DRAFTS]  # type: ignore[operator]
    assert expected == 1 + 19 / 15
    status = process(
        1.0,
        accepted_token_count=19,
        drafted_per_position_counts=per_position(totals.draft_lengths),
        accepted_per_position_counts=per_position(totals.accepted_lengths),
    )
    assert look(Looks(), 1.0, status).total.mean_acceptance_length == expected
    ((query,),) = [
        [target["expr"] for target in panel["targets"]]
        for panel in json.loads(Path("deploy/grafana/slipstream.json").read_text())["panels"]
        if panel["title"] == "Mean acceptance length"
    ]
    assert re.fullmatch(r"1 \+ .*num_accepted_tokens_total.* / .*num_drafts_total.*", query)
