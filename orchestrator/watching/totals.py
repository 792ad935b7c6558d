"""Totals over all rounds and turns of this process. Pure.

On the event loop a round costs an append; many rounds are counted together, which takes a third of
the work. Metrics read the totals from other threads.
"""

from __future__ import annotations

import threading
from collections import Counter

from orchestrator.errors import OverloadedError, PrincipalLimitError
from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.result import RoundResult
from orchestrator.sessions.turns.acceptance_window import AcceptanceWindow
from orchestrator.sessions.turns.turn_record import TurnEnded
from slipstream.telemetry import instruments
from slipstream.telemetry.metrics import Distribution

OF_TOO_MUCH = (OverloadedError.reason, PrincipalLimitError.reason)
"""Reasons of refusals that a later retry may not meet."""
_FOLDED_FROM = 64

_Ended = tuple[RoundNote, RoundResult | None, AcceptanceWindow]


class Totals:
    """Totals since the process began. A reader calls `fold` first."""

    def __init__(self) -> None:
        self.rounds: Counter[tuple[str, str]] = Counter()
        """Rounds by outcome and rung."""
        self.draft_lengths: Counter[int] = Counter()
        """Rounds by the number of draft tokens verified."""
        self.accepted_lengths: Counter[int] = Counter()
        """The same rounds by the number of draft tokens accepted."""
        self.generation_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.lost_context_tokens = 0
        self.finished: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter(dict.fromkeys(OF_TOO_MUCH, 0))
        """Refusals by reason. Those that alerts read are there from the start: a count that begins
        with its first event has not risen."""
        self.refused_calls: Counter[tuple[str, str]] = Counter()
        """Failed calls by method and reason."""
        self.switched_off = 0
        self.expired = 0
        self.folded = 0
        self.permit_wait = Distribution(instruments.PLACE_WAIT.bounds)
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
        self._fresh: list[_Ended] = []
        self._lock = threading.Lock()
        self._distributions = [each for each in vars(self).values() if isinstance(each, Distribution)]

    def add_round(self, note: RoundNote, result: RoundResult | None, window: AcceptanceWindow) -> None:
        """Add a round that has ended; ``window`` is its session's."""
        self._fresh.append((note, result, window))
        is_large = result is not None and (result.logprobs or result.prompt_logprobs)
        if is_large or len(self._fresh) >= _FOLDED_FROM:
            self.fold()

    def fold(self) -> None:
        """Count the rounds that have ended since the last call."""
        with self._lock:
            count = len(self._fresh)
            fresh = self._fresh[:count]
            del self._fresh[:count]  # rounds that have ended meanwhile stay
            self._count(fresh)

    def _count(self, ended: list[_Ended]) -> None:
        for note, result, window in ended:
            self.rounds[note.outcome, note.rung] += 1
            if result is None:
                continue
            self.generation_tokens += note.committed
            if note.number > 1 and note.committed:
                self.token.observe_all([note.seconds / note.committed] * note.committed)
            self.switched_off += result.switched_off
            if result.waited:
                self.wait.observe(result.waited)
            if note.drafted:
                self.draft_lengths[note.drafted] += 1
                self.accepted_lengths[note.accepted] += 1
                share = window.add(note.drafted, note.accepted)
                if share is not None:
                    self.window.observe(share)
        done = [(note, result) for note, result, _ in ended if result is not None]
        self.round.observe_all([note.seconds for note, _ in done])
        self.idle.observe_all([note.verifier_idle for note, _ in done])
        verified = [result.verify for _, result in done]
        self.verify.observe_all([timing.forward for timing in verified])
        self.verifier_queue.observe_all([timing.queue for timing in verified])
        self.verifier_network.observe_all([timing.network for timing in verified])
        drafted = [timing for _, result in done for timing in result.drafted]
        self.draft.observe_all([timing.forward for timing in drafted])
        self.draft_queue.observe_all([timing.queue for timing in drafted])
        self.draft_network.observe_all([timing.network for timing in drafted])

    def add_turn(self, ended: TurnEnded, reason: str) -> None:
        """Add a turn that has ended. ``reason`` is that of its error, empty without one."""
        statistics = ended.statistics
        if reason:
            self.failed[reason] += 1
        else:
            self.finished[ended.finish_reason.value] += 1
        self.turn.observe(statistics.total)
        self.permit_wait.observe(statistics.admission)
        for each in self._distributions:
            each.fold()
        if statistics.round_count:
            self.first_token.observe(statistics.time_to_first_token)
            self.prompt_tokens += ended.prompt_token_count
            self.cached_tokens += ended.cached_token_count
