"""What the engine refuses.

SlipstreamError
├── OutOfPagesError        no page is free just now; a retry can help
├── QueueFullError         too many jobs wait; a retry can help
├── SequenceLimitError     too many sequences are open; a retry can help
├── ContextExceededError   the sequence can never fit
├── UnknownHandleError     the handle was never given, was closed, or has ended
├── SequenceTooShortError  base_length is past what the handle's cache holds
├── StaleRoundError        a round older than the last, or overtaken by a newer one
├── RoundConflictError     a round's number again, but other content
├── InvalidItemError       an item's field is wrong
├── ModelThreadFailedError the model cannot compute any more; the service ends
└── UnsupportedModelError  the model cannot be served; said at start
"""

from __future__ import annotations

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason


class OutOfPagesError(SlipstreamError):
    """No KV page is free just now."""

    reason = Reason.OUT_OF_PAGES
    retry_after = 0.1


class QueueFullError(SlipstreamError):
    """The model thread's queue is full."""

    reason = Reason.QUEUE_FULL
    retry_after = 0.1


class SequenceLimitError(SlipstreamError):
    """The service holds as many open sequences as it may."""

    reason = Reason.SEQUENCE_LIMIT
    retry_after = 1.0


class ContextExceededError(SlipstreamError):
    """A sequence longer than the model's context or than all KV memory (metadata:
    context_length)."""

    reason = Reason.CONTEXT_EXCEEDED


class UnknownHandleError(SlipstreamError):
    """A handle that is not, or no longer, open here."""

    reason = Reason.UNKNOWN_HANDLE


class SequenceTooShortError(SlipstreamError):
    """``base_length`` is past the handle's cached length: send the tokens from there on (metadata:
    cached_length)."""

    reason = Reason.SEQUENCE_TOO_SHORT


class StaleRoundError(SlipstreamError):
    """A round number below the handle's last, or a job overtaken by a newer round."""

    reason = Reason.STALE_ROUND


class RoundConflictError(SlipstreamError):
    """A round number that was asked before, with other content: a new round needs a new number."""

    reason = Reason.ROUND_CONFLICT


class InvalidItemError(SlipstreamError):
    """A field of an item is wrong."""

    reason = Reason.INVALID_ITEM


class ModelThreadFailedError(SlipstreamError):
    """The model cannot compute any more: its service is about to end and may come back."""

    reason = Reason.MODEL_THREAD_FAILED
    retry_after = 1.0


class UnsupportedModelError(SlipstreamError):
    """The model cannot be loaded or served."""

    reason = Reason.UNSUPPORTED_MODEL
