"""Current values of the orchestrator's metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

from orchestrator.peers.model_info import ModelInfo
from orchestrator.processes.draft_metrics import SHOWN_DIGITS, draft_readings
from orchestrator.processes.peer_discovery import Peers
from orchestrator.sessions.entrance.sessions import Sessions
from orchestrator.sessions.turns.statistics import per_position
from orchestrator.speculation.proposal import Source
from orchestrator.store.writing import Writing
from orchestrator.watching.acceptance import AcceptanceTally
from orchestrator.watching.totals import Totals
from orchestrator.watching.watching import Watching
from slipstream.telemetry import instruments
from slipstream.telemetry.metrics import Reading, reading
from slipstream.version import VERSION

_SOURCES = {source.value for source in Source}


def readings(
    sessions: Sessions, peers: Peers, watching: Watching, writing: Writing, loop: asyncio.AbstractEventLoop
) -> Iterator[Reading]:
    """Yield the current values. May be called from any thread."""
    yield reading(instruments.ASYNCIO_TASKS, len(asyncio.all_tasks(loop)))
    totals = watching.totals
    yield from speculation_readings(totals)
    yield from _times(totals)
    yield from _turns(totals)
    yield from acceptance_readings(watching.acceptance)
    yield from _sessions(sessions)
    yield from _peers(peers)
    yield from draft_readings(peers.drafts)
    yield reading(instruments.STORE_WRITABLE, float(writing.is_possible))
    if sessions.is_serving:
        yield reading(instruments.INFO, {_info(sessions.pair.target): 1})


def speculation_readings(totals: Totals) -> Iterator[Reading]:
    """Yield the counts of drafts and of their tokens."""
    drafted, accepted = dict(totals.draft_lengths), dict(totals.accepted_lengths)
    yield reading(instruments.DRAFTS, sum(drafted.values()))
    yield reading(instruments.DRAFT_TOKENS, sum(length * count for length, count in drafted.items()))
    yield reading(instruments.ACCEPTED_TOKENS, sum(length * count for length, count in accepted.items()))
    for instrument, lengths in (
        (instruments.DRAFT_TOKENS_PER_POS, drafted),
        (instruments.ACCEPTED_TOKENS_PER_POS, accepted),
    ):
        counts = per_position(lengths)
        counts += [0] * (max(drafted, default=0) - len(counts))
        yield reading(instrument, {(str(position),): count for position, count in enumerate(counts)})
    yield reading(instruments.ROUNDS, dict(totals.rounds))
    yield reading(instruments.SPECULATION_SWITCHED_OFF, totals.switched_off)
    yield reading(instruments.WINDOW_ACCEPTANCE, totals.window)


def _times(totals: Totals) -> Iterator[Reading]:
    yield reading(instruments.PLACE_WAIT, totals.permit_wait)
    yield reading(instruments.TIME_TO_FIRST_TOKEN, totals.first_token)
    yield reading(instruments.INTER_TOKEN_LATENCY, totals.token)
    yield reading(instruments.E2E_LATENCY, totals.turn)
    yield reading(instruments.ROUND_TIME, totals.round)
    yield reading(instruments.VERIFY_TIME, totals.verify)
    yield reading(instruments.DRAFT_TIME, totals.draft)
    yield reading(instruments.DRAFT_WAIT, totals.wait)
    yield reading(instruments.QUEUE_TIME, {("verifier",): totals.verifier_queue, ("draft",): totals.draft_queue})
    yield reading(instruments.NETWORK_TIME, {("verifier",): totals.verifier_network, ("draft",): totals.draft_network})
    yield reading(instruments.VERIFIER_IDLE, totals.idle)


def _turns(totals: Totals) -> Iterator[Reading]:
    yield reading(instruments.PROMPT_TOKENS, totals.prompt_tokens)
    yield reading(instruments.GENERATION_TOKENS, totals.generation_tokens)
    yield reading(instruments.PREFIX_CACHE_QUERIES, totals.prompt_tokens)
    yield reading(instruments.PREFIX_CACHE_HITS, totals.cached_tokens)
    yield reading(instruments.LOST_CONTEXT_TOKENS, totals.lost_context_tokens)
    for instrument, counts in (
        (instruments.REQUESTS_SUCCEEDED, totals.finished),
        (instruments.REQUESTS_FAILED, totals.failed),
        (instruments.REQUESTS_REJECTED, totals.rejected),
    ):
        yield reading(instrument, {(name,): count for name, count in dict(counts).items()})
    yield reading(instruments.CALLS_REFUSED, dict(totals.refused_calls))
    yield reading(instruments.SPANS_FOLDED, totals.folded)
    yield reading(instruments.SESSIONS_EXPIRED, totals.expired)


def acceptance_readings(tally: AcceptanceTally) -> Iterator[Reading]:
    """Yield draft tokens by task and draft, and when the target last changed."""
    drafted: Counter[tuple[str, str]] = Counter()
    accepted: Counter[tuple[str, str]] = Counter()
    for (task, draft), counts in tally.totals.items():
        label = draft if draft in _SOURCES else draft[:SHOWN_DIGITS]
        drafted[task, label] += counts[0]
        accepted[task, label] += counts[1]
    yield reading(instruments.TASK_DRAFT_TOKENS, drafted)
    yield reading(instruments.TASK_ACCEPTED_TOKENS, accepted)
    if tally.target_changed is not None:
        yield reading(instruments.TARGET_CHANGED, tally.target_changed)


def _sessions(sessions: Sessions) -> Iterator[Reading]:
    load = sessions.load
    yield reading(instruments.REQUESTS_RUNNING, load.running_count)
    yield reading(instruments.REQUESTS_WAITING, load.waiting_count + load.queued_count)
    yield reading(instruments.TURN_PLACES, load.permit_count)
    admission = sessions.admission
    limits = admission.limits
    yield reading(instruments.TURN_PLACES_SET_BY, {(admission.permits_set_by,): 1})
    yield reading(instruments.ADMISSION_USED, {(name,): used for name, (used, _) in limits.items()})
    yield reading(instruments.ADMISSION_LIMIT, {(name,): most for name, (_, most) in limits.items()})
    yield reading(instruments.ADMISSION_REFUSED, {(name,): count for name, count in dict(admission.refused).items()})
    yield reading(instruments.SESSIONS, load.session_count)
    yield reading(instruments.SESSIONS_NOT_DRAFTING, load.not_drafting_count)


def _peers(peers: Peers) -> Iterator[Reading]:
    known, sides = peers.all, peers.drafts.sides
    yield reading(instruments.PEER_REACHABLE, {(peer.role, peer.address): float(peer.reachable) for peer in known})
    yield reading(instruments.RECONNECTS, {(peer.role, peer.address): peer.reconnect_count for peer in known})
    faults = {(peer.role, peer.address, field): n for peer in known for field, n in dict(peer.faults.counts).items()}
    yield reading(instruments.PEER_FAULTS, faults)
    counts = {("verifier", address): count for address, count in peers.verifiers.session_counts.items()}
    yield reading(instruments.PEER_SESSIONS, counts | {("draft", side.address): side.session_count for side in sides})
    yield reading(instruments.VERIFIER_FAILOVERS, peers.verifiers.failover_count)
    if peers.verifying is not None:
        retries = dict(peers.verifying.retries)
        yield reading(instruments.VERIFY_RETRIES, {(reason,): count for reason, count in retries.items()})
    fallbacks = {(side.address, reason): count for side in sides for reason, count in dict(side.fallbacks).items()}
    yield reading(instruments.DRAFT_FALLBACKS, fallbacks)
    yield reading(instruments.DRAFT_RECOVERIES, {(side.address,): side.recoveries for side in sides})
    yield reading(instruments.DRAFT_FAILOVERS, peers.drafts.move_count)
    yield reading(instruments.DRAFT_VERIFIED_TOKENS, {(side.address,): side.verified_count for side in sides})
    yield reading(instruments.DRAFT_ACCEPTED_TOKENS, {(side.address,): side.accepted_count for side in sides})


def _info(target: ModelInfo) -> tuple[str, ...]:
    return (
        "orchestrator",
        VERSION,
        target.name,
        target.weights_fingerprint,
        target.tokenizer_fingerprint,
        target.device,
        target.dtype,
        str(target.sampling_version),
    )
