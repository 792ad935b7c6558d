"""The orchestrator's own errors. `slipstream.reasons` says what each means to a caller."""

from __future__ import annotations

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.transport.reloading import FileError


class SessionNotFoundError(SlipstreamError):
    """There is no such session."""

    reason = Reason.SESSION_NOT_FOUND


class SessionExpiredError(SlipstreamError):
    """The session was idle for longer than sessions are kept."""

    reason = Reason.SESSION_EXPIRED


class SessionBusyError(SlipstreamError):
    """A session runs one turn at a time (metadata: turn)."""

    reason = Reason.SESSION_BUSY
    retry_after = 1.0


class TurnNotFoundError(SlipstreamError):
    """The session has no such turn."""

    reason = Reason.TURN_NOT_FOUND


class TurnNotKeptError(SlipstreamError):
    """The turn's events are gone, or it has fewer tokens than the requested position."""

    reason = Reason.TURN_NOT_KEPT


class RequestIdReusedError(SlipstreamError):
    """An earlier request has the same request_id and another content."""

    reason = Reason.REQUEST_ID_REUSED


class MessageCancelledError(SlipstreamError):
    """The message was cancelled before its turn began."""

    reason = Reason.MESSAGE_CANCELLED


class ChatQueueFullError(SlipstreamError):
    """A chat has as many waiting messages as it may."""

    reason = Reason.CHAT_QUEUE_FULL
    retry_after = 1.0


class ShuttingDownError(SlipstreamError):
    """The orchestrator shuts down: running turns may finish, and nothing new begins."""

    reason = Reason.SHUTTING_DOWN
    retry_after = 1.0


class AcceptanceFixedError(SlipstreamError):
    """Coupled sampling and the ratio test are never mixed within a session."""

    reason = Reason.ACCEPTANCE_FIXED


class UnauthenticatedError(SlipstreamError):
    """The caller is not identified, and has to be (metadata: why; missing, wrong or expired)."""

    reason = Reason.UNAUTHENTICATED


class OperatorsOnlyError(SlipstreamError):
    """The method is for operators, and the caller is not one."""

    reason = Reason.OPERATORS_ONLY


class DraftNotFoundError(SlipstreamError):
    """No draft of this address is on trial."""

    reason = Reason.DRAFT_NOT_FOUND


class DraftOnTrialError(SlipstreamError):
    """A draft is on trial already, or the trial is another request's (metadata: address)."""

    reason = Reason.DRAFT_ON_TRIAL


class DraftLimitError(SlipstreamError):
    """The orchestrator has as many drafts as it takes."""

    reason = Reason.DRAFT_LIMIT


class AccessFileError(FileError):
    """The access file is missing or invalid. Clients never get this error: the orchestrator does
    not start."""

    reason = Reason.ACCESS_FILE


class SessionLimitError(SlipstreamError):
    """The orchestrator holds as many sessions as its settings allow."""

    reason = Reason.SESSION_LIMIT
    retry_after = 5.0


class PromptTooLongError(SlipstreamError):
    """The prompt leaves no room for an answer (metadata: prompt_token_count, context_length)."""

    reason = Reason.PROMPT_TOO_LONG


class OverloadedError(SlipstreamError):
    """There is more work than can be done in time (metadata: limit)."""

    reason = Reason.OVERLOADED
    retry_after = 2.0

    def __init__(self, message: str, retry_after: float = 2.0, **metadata: str | int) -> None:
        """Build the error. ``retry_after`` is in seconds: when a permit is likely to be free."""
        super().__init__(message, (), **metadata)
        self.retry_after = retry_after  # type: ignore[misc]


class PrincipalLimitError(SlipstreamError):
    """A principal has reached one of its limits (metadata: limit)."""

    reason = Reason.PRINCIPAL_LIMIT
    retry_after = 1.0

    def __init__(self, message: str, limit: str, retry_after: float | None) -> None:
        """Build the error. ``limit`` is the limit's name. ``retry_after`` is None if a single
        request exceeds the limit."""
        super().__init__(message, limit=limit)
        self.retry_after = retry_after  # type: ignore[misc, assignment]


class NotReadyError(SlipstreamError):
    """The orchestrator still waits for the verifier."""

    reason = Reason.NOT_READY
    retry_after = 1.0


class DraftLateError(SlipstreamError):
    """The draft did not answer before its deadline. Clients never get this error: the turn goes
    on without a draft."""

    reason = Reason.DRAFT_LATE


class VerifierLostError(SlipstreamError):
    """The verifier could not be reached for longer than the orchestrator waits."""

    reason = Reason.VERIFIER_LOST
    retry_after = 5.0


class StoreUnavailableError(SlipstreamError):
    """Sessions cannot be written or read now: a full disk, or a database that is away. Stored
    sessions stay.

    Metadata: outcome, if something was to be written. It is ``not_done``, or ``unknown`` if the
    database took the work and has not answered: then the work may still be done.
    """

    reason = Reason.STORE_UNAVAILABLE
    retry_after = 5.0


class SessionMovedError(SlipstreamError):
    """A different process owns the session now (metadata: session_id). The same call, repeated,
    finds it there."""

    reason = Reason.SESSION_MOVED
    retry_after = 0.1


class StoreFormatError(SlipstreamError):
    """The store's tables are another version's. Clients never get this error: the orchestrator
    does not start."""

    reason = Reason.STORE_FORMAT


class UnreadableError(SlipstreamError):
    """The stored data of a session cannot be read: another version wrote it, or it was damaged."""

    reason = Reason.SESSION_UNREADABLE


class TurnCutError(SlipstreamError):
    """The process that ran a turn has ended, and its log-probabilities or token origins are
    lost. Its tokens stay."""

    reason = Reason.TURN_CUT


class ChatProtocolError(SlipstreamError):
    """A chat command came out of order."""

    reason = Reason.CHAT_PROTOCOL
