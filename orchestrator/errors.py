"""Errors of the orchestrator.

SlipstreamError
├── SessionNotFoundError   the session never existed, or was deleted
├── SessionExpiredError    the session was idle for too long
├── SessionBusyError       another turn is running
├── SessionLimitError      too many sessions are kept; a retry can help
├── TurnNotFoundError      the turn never existed, or was undone
├── TurnNotKeptError       the turn's events are gone
├── RequestIdReusedError   the same request_id with another content
├── MessageCancelledError  the message was cancelled before its turn began
├── AcceptanceFixedError   a turn asks for another acceptance rule than its session began with
├── PromptTooLongError     the prompt does not fit into the context or the KV memory
├── ChatProtocolError      a chat command out of order
├── ChatQueueFullError     too many messages of a chat wait; a retry can help
├── NotReadyError          the verifier has not been reached yet; a retry can help
├── OverloadedError        there is more to do than can be done in time; a retry can help
├── UnauthenticatedError   the caller is not identified
├── OperatorsOnlyError     the caller is identified, and is no operator
├── AccessFileError        the access file cannot be read
├── PrincipalLimitError    the caller has as much as it may; a retry can help
├── ShuttingDownError      the orchestrator ends; a retry can help
├── StoreUnavailableError  the store cannot be read or written; a retry can help
├── SessionMovedError      another process owns the session now; a retry finds it
├── StoreFormatError       another version made the store
├── UnreadableError        another version wrote the session, or it was damaged
├── TurnCutError           the turn's process ended, and the turn cannot go on
└── VerifierLostError      the verifier has been away for too long; a retry can help
"""

from __future__ import annotations

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.transport.reloading import FileError


class SessionNotFoundError(SlipstreamError):
    """No such session."""

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
    """The turn's events are not kept any more, or it has fewer tokens than the position asked
    for."""

    reason = Reason.TURN_NOT_KEPT


class RequestIdReusedError(SlipstreamError):
    """The same request_id with another content."""

    reason = Reason.REQUEST_ID_REUSED


class MessageCancelledError(SlipstreamError):
    """A message that was cancelled before its turn began."""

    reason = Reason.MESSAGE_CANCELLED


class ChatQueueFullError(SlipstreamError):
    """A chat has as many waiting messages as it may."""

    reason = Reason.CHAT_QUEUE_FULL
    retry_after = 1.0


class ShuttingDownError(SlipstreamError):
    """The orchestrator ends: what it has begun may finish, nothing new begins."""

    reason = Reason.SHUTTING_DOWN
    retry_after = 1.0


class AcceptanceFixedError(SlipstreamError):
    """Coupled sampling and the ratio test are never mixed within a session."""

    reason = Reason.ACCEPTANCE_FIXED


class UnauthenticatedError(SlipstreamError):
    """The caller is not identified, and has to be (metadata: why; missing, wrong or expired)."""

    reason = Reason.UNAUTHENTICATED


class OperatorsOnlyError(SlipstreamError):
    """The method is for operators, and the caller is none."""

    reason = Reason.OPERATORS_ONLY


class AccessFileError(FileError):
    """The file that says who may ask is not there, or says what cannot be. Clients never get it:
    nothing is served."""

    reason = Reason.ACCESS_FILE


class SessionLimitError(SlipstreamError):
    """The orchestrator holds as many sessions as it may."""

    reason = Reason.SESSION_LIMIT
    retry_after = 5.0


class PromptTooLongError(SlipstreamError):
    """A prompt that leaves no room for an answer (metadata: prompt_token_count, context_length)."""

    reason = Reason.PROMPT_TOO_LONG


class OverloadedError(SlipstreamError):
    """There is more to do than can be done in time (metadata: limit)."""

    reason = Reason.OVERLOADED
    retry_after = 2.0

    def __init__(self, message: str, retry_after: float = 2.0, **metadata: str | int) -> None:
        """``retry_after`` in seconds: when a place is likely to be free."""
        super().__init__(message, (), **metadata)
        self.retry_after = retry_after  # type: ignore[misc]


class PrincipalLimitError(SlipstreamError):
    """A principal has as much as it may (metadata: limit)."""

    reason = Reason.PRINCIPAL_LIMIT
    retry_after = 1.0

    def __init__(self, message: str, limit: str, retry_after: float | None) -> None:
        """``limit`` names it; no ``retry_after`` where one request alone asks for more than
        that."""
        super().__init__(message, limit=limit)
        self.retry_after = retry_after  # type: ignore[misc, assignment]


class NotReadyError(SlipstreamError):
    """The orchestrator still waits for the verifier."""

    reason = Reason.NOT_READY
    retry_after = 1.0


class DraftLateError(SlipstreamError):
    """The draft did not answer within its deadline. Clients never get it: the turn goes on
    without."""

    reason = Reason.DRAFT_LATE


class VerifierLostError(SlipstreamError):
    """The verifier could not be reached for longer than the orchestrator waits."""

    reason = Reason.VERIFIER_LOST
    retry_after = 5.0


class StoreUnavailableError(SlipstreamError):
    """Sessions cannot be written down, or read, just now: a full disk, a database that is away.
    What is there stays.

    Metadata: outcome, where something was to be written. It is ``not_done``, or ``unknown`` where
    the database took the work and has not answered: then the work may still be done.
    """

    reason = Reason.STORE_UNAVAILABLE
    retry_after = 5.0


class SessionMovedError(SlipstreamError):
    """A different process owns the session now (metadata: session_id). The same call, repeated,
    finds it there."""

    reason = Reason.SESSION_MOVED
    retry_after = 0.1


class StoreFormatError(SlipstreamError):
    """A store whose tables another version made. Clients never get it: nothing is served."""

    reason = Reason.STORE_FORMAT


class UnreadableError(SlipstreamError):
    """The stored data of a session cannot be read: another version wrote it, or it was damaged."""

    reason = Reason.SESSION_UNREADABLE


class TurnCutError(SlipstreamError):
    """The process that ran a turn has ended, and what it tells beside its tokens cannot be had
    again. What was said stays."""

    reason = Reason.TURN_CUT


class ChatProtocolError(SlipstreamError):
    """A chat command that cannot come now."""

    reason = Reason.CHAT_PROTOCOL
