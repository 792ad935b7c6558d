"""A session's owner in the simulation: it says whether the draft may guess, and at what price."""

from __future__ import annotations

from orchestrator.proposers.paying import Paying
from orchestrator.proposers.trials import Trials
from slipstream.engine.hinting.hints import Hint
from slipstream.pace import Pace


class Owner:
    """Decisions of the orchestrator for one session."""

    def __init__(self, trials: Trials | None, session_count: int) -> None:
        """``trials`` are those of all sessions; None if the draft has processors of its own."""
        self._trials = trials
        self._session_count = session_count
        self._paying, self._pace = Paying(), Pace()
        self._hinted_length = 0

    @property
    def price(self) -> float:
        """Tokens that the target would choose in each second of the draft's work."""
        return self._pace.tokens_per_second * self._session_count if self._trials is not None else 0.0

    @property
    def may_guess(self) -> bool:
        """True unless hints do not pay, or a trial shows how the target does without them."""
        return self._trials.is_on if self._trials is not None else not self._paying.is_off

    def hint(self, hint: Hint) -> None:
        """Take in that a hint is passed on."""
        self._paying.hint(max(0, hint.end - max(hint.start, self._hinted_length)))
        self._hinted_length = max(self._hinted_length, hint.end)

    def commit(self, began: float, ended: float, token_count: int, accepted_count: int) -> None:
        """Take in what a step chose, and judge."""
        self._pace.record(token_count, ended - began)
        self._paying.commit(token_count)
        self._paying.accept(accepted_count)
        if self._trials is None:
            self._paying.judge()
        else:
            self._trials.record(began, ended, token_count)
