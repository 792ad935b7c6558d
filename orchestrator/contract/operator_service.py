"""OperatorService on the wire: changes of this process's drafts, and then of the others'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from orchestrator.access.access import Access, Context, OpenAccess
from orchestrator.contract.drafts import Change, check_change, draft_message, trial_of
from orchestrator.contract.refusals import refusals
from orchestrator.errors import OperatorsOnlyError
from orchestrator.rounds.draft_status import DraftStatus, TrialTerms
from orchestrator.store.rows import OwnerRow
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.v1 import operator_pb2, operator_pb2_grpc

_OPEN = "this orchestrator has no access file that says who operates it: set --access, or --anyone-operates"
_TOGETHER = (
    "needs --drafts-per-session 1: with {count}, sessions would ask the new draft beside an old one, so figures would not "
    "compare the two. Restart the orchestrator with 1 for the trial, or with --draft naming the new draft"
)
_LISTED = "this method is for operators: principals with operator = true in the access file"


class ChangesDrafts(Protocol):
    """The drafts of this process."""

    def statuses(self) -> list[DraftStatus]:
        """Return the status of each draft."""

    async def add(self, request_id: str, name: str, terms: TrialTerms | None) -> None:
        """Add a draft, on trial if there are ``terms``."""

    def set_trial(self, request_id: str, name: str, terms: TrialTerms | None) -> None:
        """Change or renew a draft's trial, or end it."""

    def remove(self, request_id: str, name: str) -> None:
        """Remove a draft."""


class AsksOthers(Protocol):
    """The other processes of the store."""

    async def ask(self, method: str, request: Any, context: Context) -> Sequence[operator_pb2.ProcessDrafts]:
        """Return what they answer to the same request. One that does not answer has an error."""


class OperatorService(operator_pb2_grpc.OperatorServiceServicer):
    """The service for operators."""

    def __init__(
        self,
        changes: ChangesDrafts,
        others: AsksOthers,
        access: Access | OpenAccess,
        me: OwnerRow,
        *,
        anyone_operates: bool,
        drafts_per_session: int = 1,
    ) -> None:
        """``anyone_operates``: without access rules every caller is an operator.
        ``drafts_per_session``: drafts that each session asks at once."""
        self._changes = changes
        self._others = others
        self._access = access
        self._me = me
        self._anyone_operates = anyone_operates
        self._drafts_per_session = drafts_per_session

    async def ListDrafts(
        self, request: operator_pb2.ListDraftsRequest, context: Context
    ) -> operator_pb2.ListDraftsResponse:
        async with refusals(context):
            self._check_caller(context)
            return operator_pb2.ListDraftsResponse(processes=await self._everywhere("ListDrafts", request, context))

    async def AddDraft(self, request: operator_pb2.AddDraftRequest, context: Context) -> operator_pb2.AddDraftResponse:
        async with refusals(context):
            self._check_change(request, context)
            self._check_trial(request)
            await self._changes.add(request.request_id, request.address, trial_of(request))
            return operator_pb2.AddDraftResponse(processes=await self._everywhere("AddDraft", request, context))

    async def SetDraftShare(
        self, request: operator_pb2.SetDraftShareRequest, context: Context
    ) -> operator_pb2.SetDraftShareResponse:
        async with refusals(context):
            self._check_change(request, context)
            self._changes.set_trial(request.request_id, request.address, trial_of(request))
            processes = await self._everywhere("SetDraftShare", request, context)
            return operator_pb2.SetDraftShareResponse(processes=processes)

    async def RemoveDraft(
        self, request: operator_pb2.RemoveDraftRequest, context: Context
    ) -> operator_pb2.RemoveDraftResponse:
        async with refusals(context):
            self._check_change(request, context)
            self._changes.remove(request.request_id, request.address)
            return operator_pb2.RemoveDraftResponse(processes=await self._everywhere("RemoveDraft", request, context))

    def _check_change(self, request: Change, context: Context) -> None:
        self._check_caller(context)
        check_change(request)

    def _check_trial(self, request: operator_pb2.AddDraftRequest) -> None:
        """Raise InvalidFieldsError for a trial that would compare several drafts with one of
        them."""
        count = self._drafts_per_session
        if request.HasField("trial") and count > 1:
            raise InvalidFieldsError([FieldViolation("trial", _TOGETHER.format(count=count))])

    def _check_caller(self, context: Context) -> None:
        """Raise OperatorsOnlyError unless an operator calls."""
        if isinstance(self._access, OpenAccess) and not self._anyone_operates:
            raise OperatorsOnlyError(_OPEN)
        self._access.operator_of(context, _LISTED)

    async def _everywhere(self, method: str, request: Any, context: Context) -> list[operator_pb2.ProcessDrafts]:
        """Return this process's drafts, and those of the others after the same request."""
        others = await self._others.ask(method, request, context)
        drafts = map(draft_message, self._changes.statuses())
        return [
            operator_pb2.ProcessDrafts(process_id=self._me.id, address=self._me.address, drafts=drafts),
            *others,
        ]
