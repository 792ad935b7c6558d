"""The errors the engine raises.

SlipstreamError
├── OutOfPagesError        no page is free now; a retry can help
├── QueueFullError         too many jobs wait; a retry can help
├── SequenceLimitError     too many sequences are open; a retry can help
├── ContextExceededError   the sequence can never fit
├── UnknownHandleError     the handle was never opened, was closed, or its lease has ended
├── SequenceTooShortError  base_length is past what the handle's cache holds
├── StaleRoundError        the round is older than the last one, or a newer one has overtaken it
├── RoundConflictError     the round's number was used before, with other content
├── InvalidItemError       a field of the item is wrong
├── ModelThreadFailedError the model can no longer compute; the service ends
├── RankGroupError         a rank of the model's group is gone or does not answer; the service ends
└── UnsupportedModelError  the model cannot be served; raised at start
"""

from __future__ import annotations

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason

STOCK_ENGINES = "serve it by --engine vllm or sglang, with --engine-address"
"""The way out for a model whose architecture this engine cannot compute."""


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
    """The sequence is longer than the model's context or than all KV memory (metadata:
    context_length)."""

    reason = Reason.CONTEXT_EXCEEDED


class UnknownHandleError(SlipstreamError):
    """The handle is not open on this service."""

    reason = Reason.UNKNOWN_HANDLE


class SequenceTooShortError(SlipstreamError):
    """``base_length`` is past the handle's cached length: send the tokens from there on (metadata:
    cached_length)."""

    reason = Reason.SEQUENCE_TOO_SHORT


class StaleRoundError(SlipstreamError):
    """The round number is below the handle's last one, or a newer round has overtaken the job."""

    reason = Reason.STALE_ROUND


class RoundConflictError(SlipstreamError):
    """The round number was used before with other content. A new round needs a new number."""

    reason = Reason.ROUND_CONFLICT


class InvalidItemError(SlipstreamError):
    """A field of an item is wrong."""

    reason = Reason.INVALID_ITEM


class ModelThreadFailedError(SlipstreamError):
    """The model can no longer compute. Its service is about to end and may come back."""

    reason = Reason.MODEL_THREAD_FAILED
    retry_after = 1.0


class RankGroupError(SlipstreamError):
    """A rank of the model's group is gone or does not answer. The group ends and may come back."""

    reason = Reason.RANK_LOST
    retry_after = 1.0


class UnsupportedModelError(SlipstreamError):
    """The model cannot be loaded or served."""

    reason = Reason.UNSUPPORTED_MODEL
