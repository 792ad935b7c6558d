"""Status codes, and the reasons that errors carry: one table for all processes and all callers.

`Reason` is the only place that spells a reason. Each member is the text on the wire (the
``reason`` of google.rpc.ErrorInfo, domain ``slipstream``) with four attributes: ``code``,
``audience``, ``meaning`` and ``action``. The page "Errors by reason" is generated from them.

A call that gRPC itself ends has no ErrorInfo: its reason is then the name of its `Code`.
"""

from __future__ import annotations

from enum import Flag, IntEnum, StrEnum, auto
from typing import Self


class Code(IntEnum):
    """The canonical status codes in use, with google.rpc.Code's numbers."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Audience(Flag):
    """Readers of a reason."""

    CALLERS = auto()
    """Callers of the public API: in the status of a call, or in a turn that fails."""
    ITEMS = auto()
    """The orchestrator: a draft or verifier service answers an item with it."""
    PEERS = auto()
    """Operators: the orchestrator records it about a draft or verifier in logs, traces and
    metrics."""
    START = auto()
    """Operators: a process prints it and ends, or does not start."""
    CLIENT = auto()
    """Users of the Python client or of the command line, which raise it themselves."""


_TURN = Audience.CALLERS | Audience.ITEMS


class Reason(StrEnum):
    """A machine-readable reason of an error, equal to its text on the wire.

    ``code`` is the status code of every error with this reason. ``audience`` says who may see it.
    ``meaning`` is one sentence, and ``action`` says what to do about it.
    """

    code: Code
    audience: Audience
    meaning: str
    action: str

    def __new__(cls, text: str, code: Code, audience: Audience, meaning: str, action: str) -> Self:
        """Make a member out of a row of the table."""
        member = str.__new__(cls, text)
        member._value_ = text
        member.code, member.audience, member.meaning, member.action = code, audience, meaning, action
        return member

    # Requests
    INVALID_FIELDS = (
        "INVALID_FIELDS",
        Code.INVALID_ARGUMENT,
        _TURN,
        "The request has fields with wrong values.",
        "Correct the fields that the BadRequest detail names. It says what is right for each one.",
    )
    INVALID_STRUCTURE = (
        "INVALID_STRUCTURE",
        Code.INVALID_ARGUMENT,
        _TURN,
        "The structure is malformed, cannot be enforced, or allows no text at all.",
        "Correct `settings.structure`. The violation says where the compiler stopped. If a JSON schema within a grammar "
        "is wrong, the metadata names its `rule`.",
    )
    PROMPT_TOO_LONG = (
        "PROMPT_TOO_LONG",
        Code.INVALID_ARGUMENT,
        Audience.CALLERS,
        "The prompt leaves no room for an answer in the model's context.",
        "Shorten the prompt, or begin another session. The metadata tells both lengths.",
    )
    REQUEST_ID_REUSED = (
        "REQUEST_ID_REUSED",
        Code.ALREADY_EXISTS,
        Audience.CALLERS,
        "An earlier request has the same request_id and another content.",
        "Use a new request_id for each new request. Repeat one only to send the same request again.",
    )
    METADATA_TOO_LARGE = (
        "METADATA_TOO_LARGE",
        Code.RESOURCE_EXHAUSTED,
        Audience.CALLERS,
        "The call's metadata is larger than the server reads.",
        "Send fewer or shorter headers. A token of 4 KiB fits.",
    )
    UNAUTHENTICATED = (
        "UNAUTHENTICATED",
        Code.UNAUTHENTICATED,
        Audience.CALLERS,
        "The call carries no token, a wrong one or an expired one.",
        "Send a valid token as `authorization: Bearer TOKEN`. The metadata's `why` says what is wrong.",
    )
    OPERATORS_ONLY = (
        "OPERATORS_ONLY",
        Code.PERMISSION_DENIED,
        Audience.CALLERS,
        "The method is for operators, and the caller's token is not an operator's.",
        "Use an operator's token, or ask an operator.",
    )

    DRAFT_NOT_FOUND = (
        "DRAFT_NOT_FOUND",
        Code.NOT_FOUND,
        Audience.CALLERS,
        "The address is not that of the draft on trial: its trial has ended, or the process was restarted.",
        "List the drafts, and add the draft again if it is still wanted.",
    )
    DRAFT_ON_TRIAL = (
        "DRAFT_ON_TRIAL",
        Code.FAILED_PRECONDITION,
        Audience.CALLERS,
        "Another draft is on trial, or the draft's trial belongs to another request_id.",
        "Wait until that trial ends, or end it with its own request_id. The metadata has its `address`.",
    )
    DRAFT_LIMIT = (
        "DRAFT_LIMIT",
        Code.FAILED_PRECONDITION,
        Audience.CALLERS,
        "The orchestrator has as many drafts as it takes.",
        "Remove a draft first.",
    )

    # Sessions and turns
    SESSION_NOT_FOUND = (
        "SESSION_NOT_FOUND",
        Code.NOT_FOUND,
        Audience.CALLERS,
        "There is no such session: it never existed, was deleted, or belongs to another caller.",
        "Check the session id and the token, or create a new session.",
    )
    SESSION_EXPIRED = (
        "SESSION_EXPIRED",
        Code.NOT_FOUND,
        Audience.CALLERS,
        "The session was idle for longer than the server keeps sessions.",
        "Create a new session. Export a session that you want to keep for longer.",
    )
    SESSION_BUSY = (
        "SESSION_BUSY",
        Code.FAILED_PRECONDITION,
        Audience.CALLERS,
        "Another turn of the session is running.",
        "Wait until the turn in the metadata ends, or cancel it. Then send again.",
    )
    SESSION_LIMIT = (
        "SESSION_LIMIT",
        Code.RESOURCE_EXHAUSTED,
        Audience.CALLERS,
        "The orchestrator holds as many sessions as its settings allow.",
        "Retry after the RetryInfo delay. Delete sessions that you no longer need.",
    )
    SESSION_MOVED = (
        "SESSION_MOVED",
        Code.UNAVAILABLE,
        Audience.CALLERS,
        "Another orchestrator process owns the session now.",
        "Send the same call again at once. It reaches the new owner. The Python client does so itself.",
    )
    SESSION_UNREADABLE = (
        "SESSION_UNREADABLE",
        Code.DATA_LOSS,
        Audience.CALLERS,
        "The stored session is damaged, or an incompatible version wrote it.",
        "Create a new session. Operators: read the orchestrator's log, and restore the store's backup.",
    )
    TURN_NOT_FOUND = (
        "TURN_NOT_FOUND",
        Code.NOT_FOUND,
        Audience.CALLERS,
        "The session has no such turn.",
        "Check the number of the turn. GetSession tells the session's turns.",
    )
    TURN_NOT_KEPT = (
        "TURN_NOT_KEPT",
        Code.OUT_OF_RANGE,
        Audience.CALLERS,
        "The turn's events are gone, or it has fewer tokens than the requested position.",
        "Read the answer with GetSession or ExportSession instead.",
    )
    TURN_CUT = (
        "TURN_CUT",
        Code.ABORTED,
        Audience.CALLERS,
        "The process that ran the turn ended, and its log-probabilities or token origins are lost.",
        "Send the message again. The tokens that you already have stay valid.",
    )
    MESSAGE_CANCELLED = (
        "MESSAGE_CANCELLED",
        Code.CANCELLED,
        Audience.CALLERS,
        "The message was cancelled before its turn began.",
        "Nothing, if you cancelled it. Otherwise send it again.",
    )
    ACCEPTANCE_FIXED = (
        "ACCEPTANCE_FIXED",
        Code.FAILED_PRECONDITION,
        Audience.CALLERS,
        "A turn asks for another acceptance method than its session began with.",
        "Leave `acceptance` unset, or begin another session.",
    )
    CHAT_PROTOCOL = (
        "CHAT_PROTOCOL",
        Code.FAILED_PRECONDITION,
        Audience.CALLERS,
        "A command of a Chat stream came out of order.",
        "Send `start` first and once, then messages and cancellations.",
    )
    CHAT_QUEUE_FULL = (
        "CHAT_QUEUE_FULL",
        Code.RESOURCE_EXHAUSTED,
        Audience.CALLERS,
        "Too many messages of one Chat stream wait for their turns.",
        "Wait for an answer before you send the next message.",
    )
    NO_CHAT_TEMPLATE = (
        "NO_CHAT_TEMPLATE",
        Code.FAILED_PRECONDITION,
        Audience.CALLERS,
        "The model has no chat template, so it cannot answer messages.",
        "Call Generate with a text or with token ids, or serve a model for chats.",
    )
    CHAT_TEMPLATE_BROKEN = (
        "CHAT_TEMPLATE_BROKEN",
        Code.FAILED_PRECONDITION,
        Audience.CALLERS,
        "The model's chat template does not compile, or fails on these messages.",
        "Read the message: many templates need alternating roles. Operators: correct the template.",
    )

    # Load and availability
    OVERLOADED = (
        "OVERLOADED",
        Code.RESOURCE_EXHAUSTED,
        _TURN,
        "There is more work than the server can do in time. The metadata's `limit` names the limit.",
        "Retry after the RetryInfo delay. Operators: add verifiers, or raise the limit.",
    )
    PRINCIPAL_LIMIT = (
        "PRINCIPAL_LIMIT",
        Code.RESOURCE_EXHAUSTED,
        Audience.CALLERS,
        "The caller has reached one of its own limits. The metadata's `limit` names it.",
        "Retry after the RetryInfo delay. Without RetryInfo the request alone exceeds the limit.",
    )
    NOT_READY = (
        "NOT_READY",
        Code.UNAVAILABLE,
        Audience.CALLERS,
        "The orchestrator still waits for its verifier.",
        "Retry after the RetryInfo delay. Operators: check that the verifier runs.",
    )
    SHUTTING_DOWN = (
        "SHUTTING_DOWN",
        Code.UNAVAILABLE,
        Audience.CALLERS,
        "The orchestrator is shutting down and begins nothing new.",
        "Retry after the RetryInfo delay: another process, or the next one, answers.",
    )
    VERIFIER_LOST = (
        "VERIFIER_LOST",
        Code.UNAVAILABLE,
        Audience.CALLERS,
        "No verifier could be reached for longer than the orchestrator waits.",
        "Retry after the RetryInfo delay. Operators: restart the verifier.",
    )
    STORE_UNAVAILABLE = (
        "STORE_UNAVAILABLE",
        Code.UNAVAILABLE,
        Audience.CALLERS,
        "Sessions cannot be read or written now: a full disk, or a database that is away.",
        "Retry with the same request_id. Stored sessions stay. Operators: repair the store.",
    )
    INTERNAL = (
        "INTERNAL",
        Code.INTERNAL,
        _TURN,
        "The server has a fault of its own.",
        "Retry once. If it happens again, report it with the server's log.",
    )

    # The model's work on a turn
    NO_TOKEN_TO_CHOOSE = (
        "NO_TOKEN_TO_CHOOSE",
        Code.FAILED_PRECONDITION,
        _TURN,
        "The turn's rules leave no token at a position.",
        "Allow more tokens: check the allowed, banned and stop tokens and the structure.",
    )
    LOGITS_NOT_FINITE = (
        "LOGITS_NOT_FINITE",
        Code.INTERNAL,
        _TURN,
        "The model computed logits that are not finite numbers.",
        "Operators: check the weights and the device, and try float32.",
    )
    STRUCTURE_FAILED = (
        "STRUCTURE_FAILED",
        Code.FAILED_PRECONDITION,
        _TURN,
        "A structure reached a point that no token continues, or that costs more than the limits.",
        "Simplify the structure, above all its repetitions.",
    )
    SAMPLING_UNSUPPORTED = (
        "SAMPLING_UNSUPPORTED",
        Code.INVALID_ARGUMENT,
        _TURN,
        "The engine behind the verifier cannot follow a sampling parameter.",
        "Leave the parameter out that the BadRequest detail names, or use a target in Slipstream's own engine.",
    )
    ENGINE_REFUSED = (
        "ENGINE_REFUSED",
        Code.INTERNAL,
        _TURN,
        "The stock engine behind the verifier refuses a request, or its answer cannot be used.",
        "Operators: compare the engine's flags and version with the guide to stock engines.",
    )
    STRUCTURE_UNSUPPORTED = (
        "STRUCTURE_UNSUPPORTED",
        Code.UNIMPLEMENTED,
        _TURN,
        "This model cannot follow structures: its tokens have no known bytes, or no token ends a text.",
        "Leave `structure` unset, or use another model.",
    )
    CONTEXT_EXCEEDED = (
        "CONTEXT_EXCEEDED",
        Code.OUT_OF_RANGE,
        _TURN,
        "The sequence is longer than the model's context or than its whole KV memory.",
        "Shorten the prompt or the answer. Operators: give the service more KV memory.",
    )
    RESULT_TOO_LARGE = (
        "RESULT_TOO_LARGE",
        Code.OUT_OF_RANGE,
        _TURN,
        "A result does not fit into one message.",
        "Ask for fewer log-probabilities.",
    )
    ITEM_TOO_LARGE = (
        "ITEM_TOO_LARGE",
        Code.INVALID_ARGUMENT,
        Audience.CALLERS,
        "An item for a model service does not fit into one message.",
        "Shorten the prompt, or name fewer tokens in the settings.",
    )
    OUT_OF_PAGES = (
        "OUT_OF_PAGES",
        Code.RESOURCE_EXHAUSTED,
        _TURN,
        "No KV page of the service is free now.",
        "Retry later. Operators: give the service more KV memory, or admit fewer turns.",
    )
    QUEUE_FULL = (
        "QUEUE_FULL",
        Code.RESOURCE_EXHAUSTED,
        _TURN,
        "Too many items wait for the service's model.",
        "Retry later. Operators: add verifiers, or admit fewer turns.",
    )
    SEQUENCE_LIMIT = (
        "SEQUENCE_LIMIT",
        Code.RESOURCE_EXHAUSTED,
        _TURN,
        "The service holds as many open sequences as its settings allow.",
        "Retry later. Operators: raise the limit, or add verifiers.",
    )
    TOKENIZER_MISMATCH = (
        "TOKENIZER_MISMATCH",
        Code.FAILED_PRECONDITION,
        _TURN | Audience.PEERS | Audience.START,
        "Draft and target, or the caller and the service, have different tokenizers.",
        "Operators: start the draft service with `--target-tokenizer`, or serve two models of one family.",
    )
    WEIGHTS_MISMATCH = (
        "WEIGHTS_MISMATCH",
        Code.FAILED_PRECONDITION,
        _TURN | Audience.PEERS | Audience.START,
        "A verifier hosts other weights, or computes them differently, than the session's tokens need.",
        "Operators: start all verifiers of a target with the same model, dtype and release.",
    )
    WIRE_VERSION_MISMATCH = (
        "WIRE_VERSION_MISMATCH",
        Code.FAILED_PRECONDITION,
        Audience.ITEMS | Audience.PEERS | Audience.START,
        "Two services speak different versions of the protocol between them.",
        "Operators: upgrade the older service.",
    )

    # Between the orchestrator and a model service
    INVALID_ITEM = (
        "INVALID_ITEM",
        Code.INVALID_ARGUMENT,
        Audience.ITEMS,
        "A field of an item is wrong.",
        "Report it: the orchestrator checks its items before it sends them.",
    )
    LOADING = (
        "LOADING",
        Code.UNAVAILABLE,
        Audience.ITEMS | Audience.PEERS,
        "The service still loads its model.",
        "Wait. The orchestrator retries.",
    )
    MODEL_THREAD_FAILED = (
        "MODEL_THREAD_FAILED",
        Code.UNAVAILABLE,
        Audience.ITEMS | Audience.PEERS,
        "The model cannot compute any more, and its service ends.",
        "Operators: read the service's log, and let a supervisor restart the service.",
    )
    RANK_LOST = (
        "RANK_LOST",
        Code.UNAVAILABLE,
        Audience.ITEMS | Audience.PEERS,
        "A rank of the model's group is gone or does not answer, and the service ends.",
        "Operators: read the log of the service for the rank, and let a supervisor restart the service.",
    )
    ENGINE_LOST = (
        "ENGINE_LOST",
        Code.UNAVAILABLE,
        Audience.ITEMS | Audience.PEERS,
        "The stock engine behind a verifier cannot be reached, or it fails.",
        "None: turns wait or move to another verifier. Operators: read the stock engine's log.",
    )
    UNKNOWN_HANDLE = (
        "UNKNOWN_HANDLE",
        Code.NOT_FOUND,
        Audience.ITEMS,
        "The handle was never opened here, was closed, or has expired.",
        "Nothing. The orchestrator opens it again and states the whole sequence.",
    )
    UNKNOWN_RULE = (
        "UNKNOWN_RULE",
        Code.NOT_FOUND,
        Audience.ITEMS,
        "An item names a rule that the service does not keep for its handle.",
        "Nothing. The orchestrator states the rule again.",
    )
    SEQUENCE_TOO_SHORT = (
        "SEQUENCE_TOO_SHORT",
        Code.FAILED_PRECONDITION,
        Audience.ITEMS,
        "An item's base_length is past the cached length, which the metadata tells.",
        "Nothing. The orchestrator sends the missing tokens.",
    )
    STALE_ROUND = (
        "STALE_ROUND",
        Code.ABORTED,
        Audience.ITEMS,
        "A newer round of the handle has come already.",
        "Nothing. The orchestrator waits for the newer round.",
    )
    ROUND_CONFLICT = (
        "ROUND_CONFLICT",
        Code.ABORTED,
        Audience.ITEMS,
        "A round number came again with another content.",
        "Report it: a new round needs a new number.",
    )
    DRAFT_LATE = (
        "DRAFT_LATE",
        Code.DEADLINE_EXCEEDED,
        Audience.PEERS,
        "The draft did not answer before its deadline, and the turn goes on without it.",
        "Operators: if it happens often, give the draft more processors or a faster network path.",
    )
    PEER_UNAUTHENTICATED = (
        "PEER_UNAUTHENTICATED",
        Code.UNAUTHENTICATED,
        Audience.PEERS,
        "The orchestrator has not shown the service's token.",
        "Operators: give both processes the same token file.",
    )
    PEER_FAULT = (
        "PEER_FAULT",
        Code.UNAVAILABLE,
        Audience.PEERS,
        "A draft or verifier sent a value that cannot be right. The metadata names its field.",
        "Operators: compare the releases of both services, and report it if they agree.",
    )
    BAD_RESULT = (
        "BAD_RESULT",
        Code.INTERNAL,
        Audience.PEERS,
        "A result of a draft or verifier cannot be parsed.",
        "Operators: compare the releases of both services, and report it if they agree.",
    )
    CORRUPT_TOKENIZER = (
        "CORRUPT_TOKENIZER",
        Code.DATA_LOSS,
        Audience.PEERS,
        "A tokenizer file from the verifier arrived damaged.",
        "Wait. The orchestrator fetches it again.",
    )
    VERIFIER_STALLED = (
        "VERIFIER_STALLED",
        Code.UNAVAILABLE,
        Audience.PEERS,
        "A verifier is connected and has stopped answering.",
        "Operators: restart the verifier. Its sessions move to another one, or wait.",
    )
    STREAM_LOST = (
        "STREAM_LOST",
        Code.UNAVAILABLE,
        Audience.PEERS | Audience.CLIENT,
        "A stream ended before its answer came.",
        "Nothing is lost. The orchestrator and the Python client reconnect and go on.",
    )

    # A process that cannot start
    UNSUPPORTED_MODEL = (
        "UNSUPPORTED_MODEL",
        Code.FAILED_PRECONDITION,
        Audience.START,
        "The model cannot be loaded or served.",
        "Read the message. It names the file or the architecture, and often another engine to try.",
    )
    ADDRESS_IN_USE = (
        "ADDRESS_IN_USE",
        Code.ALREADY_EXISTS,
        Audience.START,
        "The address to listen on is taken.",
        "Stop the process that listens there, or choose another address.",
    )
    ACCESS_FILE = (
        "ACCESS_FILE",
        Code.FAILED_PRECONDITION,
        Audience.START,
        "The access file is missing or invalid.",
        "Correct the line that the message names.",
    )
    BAD_FILE = (
        "BAD_FILE",
        Code.FAILED_PRECONDITION,
        Audience.START | Audience.CLIENT,
        "A file cannot be read, or does not hold what its setting needs.",
        "Correct the file or the flag that the message names.",
    )
    STORE_FORMAT = (
        "STORE_FORMAT",
        Code.FAILED_PRECONDITION,
        Audience.START,
        "Another version made the tables of the store.",
        "Start the release that made them, or name another store.",
    )
    TELEMETRY_SETTINGS = (
        "TELEMETRY_SETTINGS",
        Code.FAILED_PRECONDITION,
        Audience.START,
        "An OpenTelemetry environment variable has an unsupported value.",
        "Correct the variable that the message names.",
    )

    # The Python client and the command line
    PLAINTEXT = (
        "PLAINTEXT",
        Code.FAILED_PRECONDITION,
        Audience.START | Audience.CLIENT,
        "Plaintext would leave this machine.",
        "Use TLS. On a private network, allow plaintext with --insecure.",
    )
    REPLY_CLOSED = (
        "REPLY_CLOSED",
        Code.CANCELLED,
        Audience.CLIENT,
        "The program closed the reply before its end.",
        "Nothing, if that was the intention. Otherwise read the reply to its end before closing it.",
    )
    TURN_LOST = (
        "TURN_LOST",
        Code.ABORTED,
        Audience.CLIENT,
        "The server has lost the turn and begun another one for the same request.",
        "Send the request again.",
    )
    SERVICE_FAILED = (
        "SERVICE_FAILED",
        Code.UNAVAILABLE,
        Audience.CLIENT,
        "A service that the command line started ended, or did not become healthy.",
        "Read the lines of its log in the message.",
    )
    NOT_TEXT = (
        "NOT_TEXT",
        Code.INVALID_ARGUMENT,
        Audience.CLIENT,
        "The input is not UTF-8 text.",
        "Save the input as UTF-8.",
    )
