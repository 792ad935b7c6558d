"""Decide whether a draft's hints pay for one session. Pure.

::

    on --(200 hinted positions: they do not pay)--> off --(100 tokens)--> on

The verifier drops hints that do not pay, so hints cost it nothing. A draft on processors of its own
costs nothing either. But one that is nearly never right takes time from other sessions.
"""

from __future__ import annotations

WINDOW = 200
"""Positions with a hint before the hints are judged. More: chance switches off fewer sessions, but
a draft that is never right is found out later."""

REST = 100
"""Tokens of the session before a draft that did not pay is tried again. More: a useless draft costs
less, but one that has become right is found later."""

LEAST_SHARE = 0.05
"""Share of the hinted positions at which the hint was accepted, below which a draft does not
pay."""


class Paying:
    """The judgement of one session."""

    def __init__(self) -> None:
        self._left = 0
        self._hinted = self._accepted = 0

    @property
    def is_off(self) -> bool:
        """True while the draft is to rest."""
        return self._left > 0

    def hint(self, position_count: int) -> None:
        """Record that the draft has sent a token for so many positions that had none."""
        self._hinted += position_count

    def accept(self, token_count: int) -> None:
        """Record that so many of its tokens were accepted."""
        self._accepted += token_count

    def commit(self, token_count: int) -> None:
        """Record that the session has so many more tokens."""
        self._left = max(0, self._left - token_count)

    def judge(self) -> bool:
        """Switch off if the last positions show that hints do not pay; return True if that is
        so."""
        if self.is_off or self._hinted < WINDOW:
            return False
        pays = self._accepted >= LEAST_SHARE * self._hinted
        self._hinted = self._accepted = 0
        self._left = 0 if pays else REST
        return not pays
