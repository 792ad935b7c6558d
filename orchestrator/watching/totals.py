"""What all rounds and turns of this process come to. Added to on the event loop, where a round takes 3 us of it; read by
whoever looks at metrics, from other threads. Pure."""

from __future__ import annotations

from collections import Counter

from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.result import RoundResult
from orchestrator.sessions.acceptance_window import AcceptanceWindow
from orchestrator.sessions.turn_record import TurnEnded
from orchestrator.watching.turn_trace import WAYS
from slipstream.telemetry import instruments
from slipstream.telemetry.metrics import Distribution


class Totals:
    """Since the process began."""

    def __init__(self) -> None:
        self.rounds: Counter[tuple[str, str, str]] = Counter()
        """By outcome, way and rung."""
        self.draft_lengths: Counter[int] = Counter()
        """Rounds by how many draft tokens were verified."""
        self.accepted_lengths: Counter[int] = Counter()
        """Those by how many were accepted."""
        self.hits = 0
        self.misses = 0
        self.generation_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.finished: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.switched_off = 0
        self.expired = 0
        self.folded = 0
        self.first_token = Distribution(instruments.TIME_TO_FIRST_TOKEN.bounds)
        self.token = Distribution(instruments.INTER_TOKEN_LATENCY.bounds)
        self.turn = Distribution(instruments.E2E_LATENCY.bounds)
        self.round = Distribution(instruments.ROUND_TIME.bounds)
        self.verify = Distribution(instruments.VERIFY_TIME.bounds)
        self.draft = Distribution(instruments.DRAFT_TIME.bounds)
        self.wait = Distribution(instruments.DRAFT_WAIT.bounds)
        self.verifier_queue = Distribution(instruments.QUEUE_TIME.bounds)
        self.draft_queue = Distribution(instruments.QUEUE_TIME.bounds)
        self.verifier_network = Distribution(instruments.NETWORK_TIME.bounds)
        self.draft_network = Distribution(instruments.NETWORK_TIME.bounds)
        self.idle = Distribution(instruments.VERIFIER_IDLE.bounds)
        self.window = Distribution(instruments.WINDOW_ACCEPTANCE.bounds)
        self._distributions = [each for each in vars(self).values() if isinstance(each, Distribution)]

    def add_round(self, note: RoundNote, result: RoundResult | None, window: AcceptanceWindow) -> None:
        """A round has ended; ``window`` is its session's."""
        plan = note.plan
        self.rounds[note.outcome, WAYS[plan.overlap] if plan.draft_length else "none", note.rung] += 1
        if result is None or note.verify is None:
            return
        drafted, verify = note.drafted, result.verify
        network = max(0.0, verify.round_trip - verify.total)
        self.generation_tokens += note.committed
        seconds = note.ended - note.began
        self.round.observe(seconds)
        if note.number > 1 and note.committed:
            self.token.observe_all([seconds / note.committed] * note.committed)
        self.verify.observe(verify.forward)
        self.verifier_queue.observe(verify.queue)
        self.verifier_network.observe(network)
        self.idle.observe(max(0.0, note.verify.began - note.answered) + network)
        if result.hit is not None:
            self.hits += result.hit
            self.misses += not result.hit
        if result.switched_off:
            self.switched_off += 1
        if result.asked:
            self.wait.observe(result.waited)
        for timing in result.drafted:
            self.draft.observe(timing.forward)
            self.draft_queue.observe(timing.queue)
            self.draft_network.observe(max(0.0, timing.round_trip - timing.total))
        if drafted:
            self.draft_lengths[drafted] += 1
            self.accepted_lengths[note.accepted] += 1
            share = window.add(drafted, note.accepted)
            if share is not None:
                self.window.observe(share)

    def add_turn(self, ended: TurnEnded, reason: str) -> None:
        """A turn has ended; ``reason`` is why it could not go on, empty if that is not so."""
        statistics = ended.statistics
        if reason:
            self.failed[reason] += 1
        else:
            self.finished[ended.finish_reason.value] += 1
        self.turn.observe(statistics.total)
        for each in self._distributions:
            each.fold()
        if statistics.round_count:
            self.first_token.observe(statistics.time_to_first_token)
            self.prompt_tokens += ended.prompt_token_count
            self.cached_tokens += ended.cached_token_count
