"""Changes of the drafts while the process runs: who may change what, and how long a trial lasts."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from orchestrator.errors import DraftLimitError, DraftNotFoundError, DraftOnTrialError
from orchestrator.processes.peer_discovery import Peers
from orchestrator.rounds.draft_status import DraftStatus, TrialTerms, status_of_draft
from orchestrator.rounds.drafts import TrialShare
from slipstream.errors import FieldViolation, InvalidFieldsError

log = logging.getLogger(__name__)

MOST_DRAFTS = 32
"""Drafts by their names. More: sessions spread thinner, and metrics have more labels."""


class _Trial(NamedTuple):
    request_id: str
    name: str
    share: float
    expiry: asyncio.TimerHandle


class DraftChanges:
    """The drafts of this process. At most one of them is on trial: its share of the sessions is
    fixed, and it is removed when its lease ends."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._trial: _Trial | None = None
        self._adding = asyncio.Lock()
        """Held while a draft is added: what fails is taken back, and only that."""

    def statuses(self) -> list[DraftStatus]:
        """Return the status of each draft."""
        sides = self._peers.drafts.sides
        return [
            status_of_draft(name, [side for side in sides if side.name == name], self._terms_of(name))
            for name in self._peers.draft_names
        ]

    async def add(self, request_id: str, name: str, terms: TrialTerms | None) -> None:
        """Add a draft, on trial if there are ``terms``. Nothing happens if it is there already,
        except that the terms of its trial may change.

        InvalidFieldsError for a trial of a draft that is not on trial; DraftOnTrialError;
        DraftLimitError; NotReadyError.
        """
        async with self._adding:
            await self._add(request_id, name, terms)

    async def _add(self, request_id: str, name: str, terms: TrialTerms | None) -> None:
        is_known = name in self._peers.draft_names
        if terms is None:
            if is_known:
                return
        elif self._owned(request_id, name) is not None:
            self._begin(request_id, name, terms)
            return
        elif is_known:
            raise InvalidFieldsError([FieldViolation("address", "must not be a draft of this orchestrator already")])
        if len(self._peers.draft_names) >= MOST_DRAFTS:
            raise DraftLimitError(f"there are {MOST_DRAFTS} drafts, and no more are taken: remove one first")
        if terms is not None:  # before its first session
            self._begin(request_id, name, terms)
        try:
            await self._peers.add_draft(name)
        except BaseException:  # refused, or cancelled during the lookup of its name
            self.remove(request_id, name)
            raise
        log.info("the draft at %s was added by request %.128r", name, request_id)

    def set_trial(self, request_id: str, name: str, terms: TrialTerms | None) -> None:
        """Change or renew a trial; without ``terms`` it ends, and the draft stays. Ending it is
        repeatable. DraftOnTrialError, DraftNotFoundError."""
        if self._owned(request_id, name) is None:
            if terms is None and name in self._peers.draft_names:
                return
            raise DraftNotFoundError(f"no draft at {name} is on trial: its trial has ended, or this process is new")
        if terms is None:
            self._end()
            log.info("the draft at %s stays: its trial has ended", name)
        else:
            self._begin(request_id, name, terms)

    def remove(self, request_id: str, name: str) -> None:
        """Remove a draft. Nothing happens if it is not there. DraftOnTrialError."""
        if self._trial is not None and self._trial.name == name:
            self._owned(request_id, name)
            self._end()
        if name in self._peers.draft_names:
            log.info("the draft at %s is removed by request %.128r", name, request_id)
            self._peers.remove_draft(name)

    def _owned(self, request_id: str, name: str) -> _Trial | None:
        """Return the trial, if it is this draft's; None if there is none. DraftOnTrialError if it
        is another's."""
        trial = self._trial
        if trial is not None and (trial.request_id, trial.name) != (request_id, name):
            what = f"the draft at {trial.name} is on trial, by another request"
            raise DraftOnTrialError(f"{what}: one at a time", address=trial.name)
        return trial

    def _terms_of(self, name: str) -> TrialTerms | None:
        trial = self._trial
        if trial is None or trial.name != name:
            return None
        return TrialTerms(trial.share, max(0.0, trial.expiry.when() - asyncio.get_running_loop().time()))

    def _begin(self, request_id: str, name: str, terms: TrialTerms) -> None:
        self._end()
        expiry = asyncio.get_running_loop().call_later(terms.lease_seconds, self._expire)
        self._trial = _Trial(request_id, name, terms.share, expiry)
        self._peers.drafts.trial = TrialShare(name, terms.share)

    def _end(self) -> None:
        if self._trial is not None:
            self._trial.expiry.cancel()
        self._trial = self._peers.drafts.trial = None

    def _expire(self) -> None:
        trial = self._trial
        if trial is not None:
            log.warning("the lease of the draft on trial at %s has ended: it is removed", trial.name)
            self.remove(trial.request_id, trial.name)
