"""Hints from a draft service that guesses on beside the target.

::

    begin, committed --> DraftRun --> draft --> take_hints --> sink (the verifier's run)

A draft that is late, dead or wrong holds nothing up: there is no hint. What fails is mended at the
next commit, which states all committed tokens again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from orchestrator.errors import DraftLateError
from orchestrator.peers.draft_run import DraftRun, GuessTerms
from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.run_parts import Part
from orchestrator.peers.sequence import REASONS_TO_RESTATE
from orchestrator.proposers.draft_work import DraftWork
from orchestrator.proposers.paying import Paying
from orchestrator.proposers.proposer import Figures, HintSink, Proposer
from orchestrator.proposers.trials import LONGEST_HOLD, SETTLING_TOKENS, Grade, Trials
from orchestrator.rounds.draft_figures import TurnFigures, is_of
from orchestrator.rounds.draft_request import SessionDrafting
from orchestrator.rounds.drafting import DraftSide
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.terms import RoundTerms
from slipstream.errors import SlipstreamError
from slipstream.pace import Pace
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError
from slipstream.wire.v1 import hint_pb2

log = logging.getLogger(__name__)

_MOST_RESTATEMENTS = 3
"""Times that a position is stated again without a hint in between. Then the draft is left alone
until the next run."""

_LONGEST_FIXED_HOLD = 1.0
"""Longest time in seconds for which a step waits for the hint of a fixed length."""

_LEAST_SILENCE, _USUAL_INTERVALS, _READING_SECONDS = 1.0, 100, 0.01
"""A draft is silent for too long after so many seconds, or so many usual intervals between its
hints. Before its first hint it also has so many seconds for each token that it reads. A draft that
is not worth its steps makes a guess in 50 of them, and says nothing in between."""


class DraftProposer(Proposer):
    """One session's hints from its draft."""

    def __init__(self, drafts: Drafts, drafting: SessionDrafting, session_id: str) -> None:
        """``drafting`` says where the session lives, and what its draft holds."""
        self._drafts, self._drafting, self._session_id = drafts, drafting, session_id
        self._paying, self._pace, self._grade = Paying(), Pace(), Grade()
        self._side: DraftSide | None = None
        self._trials: Trials | None = None
        """Trials of adaptive turns on processors that draft and target share."""
        self._is_shared = False
        """True if the draft computes on the target's processors."""
        self._cannot_pay = False
        """True if its hints cannot pay there, however right they are."""
        self._has_part = False
        """True once the run has brought a part."""
        self._is_tried = False
        """True if the last part came with hints switched on."""
        self._settling = 0
        """Tokens that still come before a switch has settled."""
        self._verifier: ModelInfo | None = None
        self._sink: HintSink | None = None
        """The run that gets the hints; None while there is none."""
        self._tokens: list[int] = []
        self._until_length = 0
        self._terms: RoundTerms | None = None
        self._run: DraftRun | None = None
        self._handle = ""
        self._told_length = 0
        """Committed tokens that the draft was told of."""
        self._restatements = 0
        self._is_left = False
        """True if the draft is left alone until the next run."""
        self._hinted_length = 0
        """Position after the last one that had a hint."""
        self._work = DraftWork()
        self._is_switched_off = False
        self._turn: TurnFigures | None = None
        """Figures of the run; None if they are not the draft's alone."""

    @property
    def rests(self) -> bool:
        """True while the draft makes no hints because they do not pay."""
        return self._cannot_pay or self._paying.is_off or (self._trials is not None and not self._trials.pays)

    def prepare(self, terms: RoundTerms, verifier: ModelInfo) -> float | None:
        """Find the session's draft."""
        before, self._side, self._verifier = self._drafting.sequence.address, None, verifier
        if terms.speculation.uses_draft:
            self._side = self._drafts.home(self._drafting, begins_turn=True, stays=False)
        if self._side is None:
            return None
        self._turn = None if before and self._side.address != before else TurnFigures()
        self._meet(self._side, terms, verifier)
        if not (self._may_guess and self._side.is_well and self._side.is_reachable):  # no hint is on its way
            return None
        if terms.speculation.draft_length is not None:
            return min(_LONGEST_FIXED_HOLD, self._side.deadline_seconds)
        return LONGEST_HOLD if self._is_shared else None

    def _meet(self, side: DraftSide, terms: RoundTerms, verifier: ModelInfo) -> None:
        """See whether a draft shares the verifier's processors, and must be tried there: one whose
        work is nothing beside a step of the target costs nothing, and one that costs as much as the
        target cannot pay."""
        info = side.info
        self._is_shared = info is not None and info.processors.are_short_beside(verifier.processors)
        is_adaptive = terms.speculation.draft_length is None
        self._cannot_pay = bool(self._is_shared and is_adaptive and info and info.costs_as_much_as(verifier))
        is_tried = (
            self._is_shared and is_adaptive and not (self._cannot_pay or (info and info.is_negligible_beside(verifier)))
        )
        self._trials = side.shared.trials_of(terms.rule.temperature, self._grade.value) if is_tried else None

    def begin(self, tokens: Sequence[int], until_length: int, terms: RoundTerms, sink: HintSink) -> None:
        """Let the draft guess past the committed ``tokens``."""
        self._tokens, self._until_length, self._terms, self._sink = list(tokens), until_length, terms, sink
        self._restatements, self._is_left, self._hinted_length = 0, False, len(tokens)
        self._has_part = False
        self._is_tried, self._settling = self._trials is not None and self._trials.is_on, 0
        self._work.clear()
        if self._side is not None:
            self._side.shared.run_count += 1
        self._start()

    def committed(self, position: int, part: Part) -> None:
        """Tell the draft what the target has chosen."""
        if self._side is None or self._sink is None:
            return
        self._tokens += part.tokens
        self._pace.record(len(part.tokens), part.timing.round_trip)
        self._count(part, self._side)
        self._move_if_away(self._side)
        run = self._run
        if self._side is None:  # its draft was removed
            return
        if not (self._may_guess and self._sink.goes_on):  # else it would guess on up to its horizon
            self._end_run()
        elif run is None or run.has_ended:
            self._start()
        elif self._is_silent(run, self._side):
            self._give_up(self._side)
        else:
            run.commit(self._told_length, self._tokens[self._told_length :], self._price)
            self._told_length = len(self._tokens)

    def stop(self) -> None:
        """Let the draft rest. Its KV stays."""
        self._end_run()
        if self._side is not None and self._sink is not None:
            self._side.shared.run_count -= 1
            if self._turn is not None:
                self._side.figures.record_turn(self._turn)
        self._turn = None
        self._sink = self._terms = None
        self._tokens = []

    def take_figures(self) -> Figures:
        """Return what the draft did since the last call."""
        is_switched_off, self._is_switched_off = self._is_switched_off, False
        return Figures(self._work.take(), is_switched_off)

    def take_hints(self, hints: Sequence[hint_pb2.Hint], timing: PeerTiming) -> None:
        """Pass hints on to the verifier."""
        if self._side is None or self._sink is None or self._verifier is None:
            return
        self._work.record(self._side.address, timing, sum(len(hint.tokens) for hint in hints))
        for hint in hints:
            self._side.record_hints(hint.source_id)
            self._drafting.sequence.learn(hint.length_seen - 1)
            end = hint.start + len(hint.tokens)
            self._paying.hint(max(0, end - max(hint.start, self._hinted_length)))
            if end > self._hinted_length:
                self._restatements = 0
            self._hinted_length = max(self._hinted_length, end)
            if (known := _known(hint, self._verifier.vocabulary_size)) is not None:
                self._sink.hint(known)

    def fail(self, error: PeerError) -> None:
        """State the position again if that helps; else leave the draft alone for a while."""
        side, self._run = self._side, None
        if side is None or self._sink is None:
            return
        is_mended = error.reason in REASONS_TO_RESTATE or error.reason == Reason.STALE_ROUND
        if is_mended and self._restatements < _MOST_RESTATEMENTS:
            self._restatements += 1
            if error.reason in REASONS_TO_RESTATE:
                self._drafting.sequence.correct(self._handle, error.reason, error.metadata)
            self._start()
            return
        if not self._record_failure(side, error):
            self._is_left = True

    @property
    def _price(self) -> float:
        """Tokens that the target would choose in each second of the draft's work, for all sessions:
        about as many for each."""
        if not self._is_shared or self._side is None:
            return 0.0
        return self._pace.tokens_per_second * self._side.shared.run_count

    @property
    def _may_guess(self) -> bool:
        """True unless a trial shows how the target does without hints, or they do not pay."""
        if self._cannot_pay or self._paying.is_off:
            return False
        return self._trials is None or self._trials.is_on

    def _start(self) -> None:
        """State the whole position, if the draft may be asked."""
        side, terms, sink = self._side, self._terms, self._sink
        if side is None or terms is None or sink is None or self._is_left or not self._may_guess:
            return
        if len(self._tokens) >= self._until_length or not side.may_start():
            return
        sequence = self._drafting.sequence
        position = sequence.position(self._tokens)
        self._handle = sequence.handle
        guess = GuessTerms(self._until_length, terms.speculation.draft_length or 0, self._price)
        self._told_length = len(self._tokens)
        traceparent = self._work.begin(sink.traceparent)
        run = side.start_run(sequence, position, guess, terms.rule, traceparent, self)
        self._run = None if run.has_ended else run

    def _count(self, part: Part, side: DraftSide) -> None:
        """Count what came of the hints, and let the draft rest if they do not pay."""
        self._paying.commit(len(part.tokens))
        if self._turn is not None:
            self._turn.record_part(part)
        for step in part.steps:
            if is_of(step, side.source_id):
                side.verified(step.hint_count, step.accepted_count)
                self._paying.accept(step.accepted_count)
                self._grade.record(step.hint_count, step.accepted_count)
                if self._turn is not None:
                    self._turn.record_step(step)
        is_adaptive = self._terms is not None and self._terms.speculation.draft_length is None
        if is_adaptive and (self._paying.judge() if self._trials is None else self._has_failed_trial(part)):
            self._is_switched_off = True
            self._end_run()
            log.info(
                "speculation does not pay for session %s: its draft rests for a while",
                self._session_id,
                extra={"session_id": self._session_id},
            )

    def _has_failed_trial(self, part: Part) -> bool:
        """Let the trials learn from a part. Return True if they show now that hints do not pay."""
        has_part, self._has_part = self._has_part, True
        side, terms = self._side, self._terms
        if self._trials is None or side is None or terms is None:
            return False
        trials = self._trials = side.shared.trials_of(terms.rule.temperature, self._grade.value)
        if not has_part:  # a first part has the prompt's time in it
            return False
        if trials.is_on != self._is_tried:
            self._is_tried, self._settling = trials.is_on, SETTLING_TOKENS
        if self._settling > 0:
            self._settling -= len(part.tokens)
            return False
        paid = trials.pays
        began = part.arrived - part.timing.round_trip
        trials.record(began, part.arrived, len(part.tokens))
        return paid and not trials.pays

    def _move_if_away(self, side: DraftSide) -> None:
        """Go on with another draft if the session's is away, or is to be left; without one if there
        is no other."""
        home = self._drafts.home(self._drafting, begins_turn=False, stays=False)
        if home is side or self._verifier is None or self._terms is None:
            return
        self._end_run()
        side.shared.run_count -= 1
        self._side = home
        self._turn = None
        self._restatements, self._is_left = 0, False
        if home is not None:
            home.shared.run_count += 1
            self._meet(home, self._terms, self._verifier)

    def _is_silent(self, run: DraftRun, side: DraftSide) -> bool:
        """Return whether the draft owes a hint for too long. On shared processors it may stand
        still."""
        if not side.is_reachable:
            return True
        if self._is_shared:
            return False
        most = max(_LEAST_SILENCE, _USUAL_INTERVALS * run.usual_interval)
        if not run.usual_interval:
            most += _READING_SECONDS * len(self._tokens)
        return min(run.silence, side.silence) > most

    def _give_up(self, side: DraftSide) -> None:
        self._end_run()
        self._record_failure(side, DraftLateError("the draft has stopped sending hints"))

    def _record_failure(self, side: DraftSide, error: SlipstreamError) -> bool:
        """Record that a draft has failed. Returns True if it has failed all sessions."""
        self._work.record_failure(side.address, error)
        side.fell_back(error.reason)
        return side.record_failure(error)

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.stop()
            self._run = None


def _known(hint: hint_pb2.Hint, vocabulary_size: int) -> hint_pb2.Hint | None:
    """Return the part of a hint before the first token that the target does not have; None if that
    is nothing."""
    if max(hint.tokens) < vocabulary_size:
        return hint
    count = next(count for count, token in enumerate(hint.tokens) if token >= vocabulary_size)
    del hint.tokens[count:], hint.survivals[count:]
    return hint if count else None
