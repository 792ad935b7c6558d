"""``slipstream top``: one look at an orchestrator after another, on a live screen or just once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live

from slipstream.cli.counts import OUTCOME, PROPOSER, Counts
from slipstream.cli.figures import Figures, Looks, Peer
from slipstream.cli.top_screen import Screen, duration
from slipstream.cli.words import OUTCOMES, PROPOSERS
from slipstream.client import Client, PeerError

ANSWER_SECONDS = 5.0
"""A look takes a second where a peer does not tell its load."""
_LONGEST_TROUBLE = 120


def look_twice(client: Client, interval: float) -> Figures:
    """Return the figures of ``interval`` seconds. Raises PeerError if the orchestrator is not
    there."""
    looks = Looks()
    looks.take(client.status(timeout=ANSWER_SECONDS), time.monotonic())
    time.sleep(interval)
    return looks.take(client.status(timeout=ANSWER_SECONDS), time.monotonic())


def print_once(client: Client, address: str, interval: float, console: Console) -> None:
    """The screen once, with all the turns that run. PeerError if the orchestrator is not there."""
    figures = look_twice(client, interval)
    console.print(Screen(address, figures, most_turns=len(figures.turns)))


def watch(client: Client, address: str, interval: float, console: Console) -> None:
    """Draw the screen again every ``interval`` seconds, until KeyboardInterrupt.

    An orchestrator that goes away is waited for. Raises PeerError if it is not there at the
    beginning.
    """
    looks = Looks()
    figures = looks.take(client.status(timeout=ANSWER_SECONDS), time.monotonic())
    answered = time.monotonic()
    with Live(Screen(address, figures), console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            live.refresh()
            time.sleep(max(0.0, interval - (time.monotonic() - began)))
            try:
                figures = looks.take(client.status(timeout=ANSWER_SECONDS), time.monotonic())
            except PeerError as error:
                live.update(Screen(address, figures, _trouble(error, time.monotonic() - answered)))
            else:
                answered = time.monotonic()
                live.update(Screen(address, figures))


def _trouble(error: PeerError, elapsed: float) -> str:
    said = str(error)
    said = said if len(said) <= _LONGEST_TROUBLE else f"{said[:_LONGEST_TROUBLE]}..."
    return f"no answer for {duration(elapsed)}, asking again; below is what was then ({error.reason}: {said})"


def as_dict(figures: Figures) -> dict[str, Any]:
    """For JSON. Rates are a second; ``now`` is between the two looks."""
    both = {"now": figures.rates, "since_start": figures.total}
    return {
        "processes": [
            {
                "number": process.status.number,
                "uptime_seconds": process.uptime,
                "session_count": process.status.session_count,
                "running_turn_count": process.status.running_turn_count,
                "waiting_message_count": process.status.waiting_message_count,
                "turn_place_count": process.status.turn_place_count,
                "waiting_turn_count": process.status.waiting_turn_count,
                "refused_count": process.status.refused_count,
                "not_drafting_count": process.status.not_drafting_count,
                "tokens_per_second": process.rates["generated_token_count"],
            }
            for process in figures.processes
        ],
        "tokens_per_second": figures.rates["generated_token_count"],
        "acceptance": {when: counts.acceptance for when, counts in both.items()},
        "mean_acceptance_length": {when: counts.mean_acceptance_length for when, counts in both.items()},
        "acceptance_per_position": {when: counts.position_acceptances for when, counts in both.items()},
        "rounds_per_second": _rounds(figures.rates),
        "milliseconds_a_round": {when: _milliseconds(counts) for when, counts in both.items()},
        "generated_token_count": figures.total["generated_token_count"],
        "prompt_token_count": figures.total["prompt_token_count"],
        "cached_token_count": figures.total["cached_token_count"],
        "peers": [_peer(peer) for peer in figures.peers],
        "running_turns": [
            {
                "session_id": turn.session_id,
                "turn": turn.number,
                "seconds": turn.elapsed,
                "generated_token_count": turn.token_count,
                "tokens_per_second": turn.tokens_per_second,
                "acceptance": turn.acceptance,
            }
            for turn in figures.turns
        ],
    }


def _rounds(rates: Counts) -> dict[str, Any]:
    def by(place: int, names: Mapping[str, str]) -> dict[str, float]:
        return {names.get(key, key).replace(" ", "_"): rate for key, rate in rates.rounds_by(place).items()}

    return {
        "all": rates.round_count,
        "by_outcome": by(OUTCOME, OUTCOMES),
        "by_proposer": by(PROPOSER, PROPOSERS),
    }


def _milliseconds(counts: Counts) -> dict[str, float] | None:
    """Return a round's parts in milliseconds; None if there was no round."""
    idle = counts.idle_a_round
    if idle is None:
        return None
    return {name: seconds * 1e3 for name, seconds in (*counts.seconds_a_round.items(), ("verifier_idle", idle))}


def _peer(peer: Peer) -> dict[str, Any]:
    load = peer.load
    told = {} if load is None else {field.name: getattr(load, field.name) for field in load.DESCRIPTOR.fields}
    return {
        "role": peer.role,
        "address": peer.address,
        "reachable": peer.reachable_from == peer.process_count,
        "steps_per_second": peer.steps_a_second,
        "load": told or None,
    }
