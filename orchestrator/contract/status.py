"""Conversion of the orchestrator's load into the status message."""

from __future__ import annotations

import time
from collections.abc import Sequence

from orchestrator.contract.traces import PROPOSERS, outcome_value
from orchestrator.peers.model_peer import PeerStatus
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.entrance.sessions import Sessions
from orchestrator.sessions.turns.statistics import per_position
from orchestrator.watching.totals import OF_TOO_MUCH, Totals
from slipstream.rpc.wire import duration
from slipstream.v1 import status_pb2

_MOST_RUNNING = 50
_STARTED = time.monotonic()


def status_message(
    sessions: Sessions, totals: Totals, peers: Sequence[PeerStatus], number: int, caller: Principal
) -> status_pb2.ProcessStatus:
    """Return this process's status. It names the caller's running turns, to an operator all of
    them."""
    load = sessions.load
    shown = [turn for turn in sessions.tasks.turns if caller.operator or turn.principal == caller.name]
    now = time.monotonic()
    return status_pb2.ProcessStatus(
        number=number,
        uptime=duration(now - _STARTED),
        session_count=load.session_count,
        running_turn_count=load.running_count,
        waiting_message_count=load.waiting_count,
        not_drafting_count=load.not_drafting_count,
        generated_token_count=totals.generation_tokens,
        prompt_token_count=totals.prompt_tokens,
        cached_token_count=totals.cached_tokens,
        draft_token_count=sum(length * count for length, count in totals.draft_lengths.items()),
        accepted_token_count=sum(length * count for length, count in totals.accepted_lengths.items()),
        drafted_per_position_counts=per_position(totals.draft_lengths),
        accepted_per_position_counts=per_position(totals.accepted_lengths),
        round_counts=[
            status_pb2.RoundCount(
                outcome=outcome_value(outcome),
                proposer=PROPOSERS.get(rung, PROPOSERS["plain"]),
                count=count,
            )
            for (outcome, rung), count in totals.rounds.items()
        ],
        verify=duration(totals.verify.sum),
        verifier_idle=duration(totals.idle.sum),
        draft_wait=duration(totals.wait.sum),
        verify_queue=duration(totals.verifier_queue.sum),
        verify_network=duration(totals.verifier_network.sum),
        rounds=duration(totals.round.sum),
        peers=map(_peer, peers),
        running_turns=[
            status_pb2.RunningTurn(
                session_id=turn.record.started.session_id,
                turn=turn.record.turn,
                total=duration(now - turn.begun),
                generated_token_count=turn.record.token_count,
                draft_token_count=turn.statistics.draft_token_count,
                accepted_token_count=turn.statistics.accepted_token_count,
            )
            for turn in sorted(shown, key=lambda turn: turn.begun)[:_MOST_RUNNING]
        ],
        turn_place_count=load.permit_count,
        waiting_turn_count=load.queued_count,
        refused_count=sum(totals.rejected[reason] for reason in OF_TOO_MUCH),
    )


def _peer(peer: PeerStatus) -> status_pb2.PeerStatus:
    load = peer.load
    return status_pb2.PeerStatus(
        role=peer.role,
        address=peer.address,
        reachable=peer.reachable,
        load=None
        if load is None
        else status_pb2.PeerLoad(
            running_count=load.running_count,
            waiting_count=load.waiting_count,
            sequence_count=load.sequence_count,
            page_count=load.page_count,
            held_page_count=load.held_page_count,
            cached_page_count=load.cached_page_count,
            step_count=load.step_count,
            paused_count=load.paused_count,
            sat_out_count=load.sat_out_count,
        ),
    )
