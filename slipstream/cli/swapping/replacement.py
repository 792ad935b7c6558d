"""The end of a trial that was won: the new draft stays, and takes the place of the old ones."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slipstream.cli.swapping.answers import lacking_at
from slipstream.cli.swapping.goal import SwapError
from slipstream.cli.swapping.new_draft import ABSENCE_SECONDS, POLL_SECONDS, NewDraft
from slipstream.errors import SlipstreamError


class Replacement:
    """The new draft in the place of the drafts at ``old_addresses``."""

    def __init__(self, draft: NewDraft, old_addresses: Sequence[str]) -> None:
        self._draft, self._old_addresses = draft, old_addresses
        self.remaining: dict[str, str] = {}
        """Old drafts that were not removed, and why."""

    def keep(self, share: float) -> None:
        """End the trial, of a ``share`` until then, with the new draft beside the old ones.
        PeerError or SwapError if it cannot be kept, as when it has died since it was measured."""
        self._draft.begin_watch()
        while not self._draft.is_served(self._draft.renew(share)):
            time.sleep(POLL_SECONDS)
        self._draft.note_unreached(self._draft.end_trial())

    def remove_old(self) -> None:
        """Remove the old drafts after `keep`, if the new one serves in every process that answers.
        One that is not removed stays beside the new one."""
        self.remaining = dict.fromkeys(self._old_addresses, "interrupted before it was removed")
        try:
            for address in self._old_addresses:
                self._wait_until_served_everywhere()
                self.remaining[address] = "interrupted while it was removed"
                self._remove(address)
            self._draft.end_trial()  # in a process, too, that was away before and lost its old drafts
        except SlipstreamError as error:
            self.remaining |= dict.fromkeys(self.remaining, str(error))

    def _remove(self, address: str) -> None:
        self._draft.note_unreached(self._draft.ask(lambda operators: operators.remove(address)))
        del self.remaining[address]

    def _wait_until_served_everywhere(self) -> None:
        """Wait until the new draft serves, on trial no more, in every process that answers.
        SwapError if it does not."""
        deadline = time.monotonic() + ABSENCE_SECONDS
        while lacking := lacking_at(self._draft.end_trial(), self._draft.address):
            if time.monotonic() > deadline:
                raise SwapError(f"the new draft does not serve everywhere: {lacking}")
            self._draft.report("waiting until the new draft serves everywhere")
            time.sleep(POLL_SECONDS)
