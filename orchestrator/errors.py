"""What the orchestrator refuses.

SlipstreamError
├── SessionNotFoundError   never was, or was deleted
├── SessionExpiredError    was, and was idle for too long
├── SessionBusyError       a turn is running on another stream
├── AcceptanceFixedError   a turn asks for another acceptance than its session began with
├── SessionLimitError      too many sessions are open; a retry can help
├── PromptTooLongError     the prompt does not fit into the context or the KV memory
├── NotReadyError          the verifier has not been reached yet; a retry can help
├── VerifierLostError      the verifier has been away for longer than the orchestrator waits; a retry can help
└── ChatProtocolError      a chat command out of order
"""

from __future__ import annotations

from slipstream.errors import Code, SlipstreamError


class SessionNotFoundError(SlipstreamError):
    """No such session."""

    code = Code.NOT_FOUND
    reason = "SESSION_NOT_FOUND"


class SessionExpiredError(SlipstreamError):
    """The session was idle for longer than sessions are kept."""

    code = Code.NOT_FOUND
    reason = "SESSION_EXPIRED"


class SessionBusyError(SlipstreamError):
    """A session runs one turn at a time."""

    code = Code.FAILED_PRECONDITION
    reason = "SESSION_BUSY"


class AcceptanceFixedError(SlipstreamError):
    """Coupled sampling and the ratio test are never mixed within a session."""

    code = Code.FAILED_PRECONDITION
    reason = "ACCEPTANCE_FIXED"


class SessionLimitError(SlipstreamError):
    """The orchestrator holds as many sessions as it may."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "SESSION_LIMIT"
    retry_after = 5.0


class PromptTooLongError(SlipstreamError):
    """A prompt that leaves no room for an answer (metadata: prompt_token_count, context_length)."""

    code = Code.INVALID_ARGUMENT
    reason = "PROMPT_TOO_LONG"


class NotReadyError(SlipstreamError):
    """The orchestrator still waits for the verifier."""

    code = Code.UNAVAILABLE
    reason = "NOT_READY"
    retry_after = 1.0


class VerifierLostError(SlipstreamError):
    """The verifier could not be reached for longer than the orchestrator waits."""

    code = Code.UNAVAILABLE
    reason = "VERIFIER_LOST"
    retry_after = 5.0


class ChatProtocolError(SlipstreamError):
    """A chat command that cannot come now."""

    code = Code.FAILED_PRECONDITION
    reason = "CHAT_PROTOCOL"
