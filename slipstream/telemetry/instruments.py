"""Every metric: name, kind, unit, labels and meaning.

docs/reference/metrics.md is generated from this module. Names end as vLLM's do where vLLM has the
same metric, because dashboards already read those. Prometheus sees every name with the prefix
``slipstream_``, and a counter with the suffix ``_total``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The kind of a metric, as Prometheus knows it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric. ``bounds`` are a histogram's upper bounds, in its unit."""

    name: str
    kind: Kind
    unit: str
    text: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def exposed_name(self) -> str:
        """Return the name that Prometheus reads."""
        return f"slipstream_{self.name}" + ("_total" if self.kind is Kind.COUNTER else "")


def _counter(name: str, unit: str, text: str, *labels: str) -> Instrument:
    return Instrument(name, Kind.COUNTER, unit, text, labels)


def _gauge(name: str, unit: str, text: str, *labels: str) -> Instrument:
    return Instrument(name, Kind.GAUGE, unit, text, labels)


def _histogram(name: str, unit: str, text: str, bounds: tuple[float, ...], *labels: str) -> Instrument:
    return Instrument(name, Kind.HISTOGRAM, unit, text, labels, bounds)


_STEPS = (
    0.0005,
    0.001,
    0.002,
    0.003,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
)
"""Bounds in seconds, for the parts of a round."""

_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Bounds in seconds, for the time that a user waits."""

_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)

_COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)

# --- the orchestrator's

DRAFTS = _counter("spec_decode_num_drafts", "rounds", "Rounds that verified a proposal.")
DRAFT_TOKENS = _counter("spec_decode_num_draft_tokens", "tokens", "Draft tokens verified.")
ACCEPTED_TOKENS = _counter("spec_decode_num_accepted_tokens", "tokens", "Draft tokens accepted.")
DRAFT_TOKENS_PER_POS = _counter(
    "spec_decode_num_draft_tokens_per_pos",
    "tokens",
    "Draft tokens verified, by position in the proposal, from 0.",
    "position",
)
ACCEPTED_TOKENS_PER_POS = _counter(
    "spec_decode_num_accepted_tokens_per_pos",
    "tokens",
    "Draft tokens accepted, by position in the proposal, from 0.",
    "position",
)
ROUNDS = _counter(
    "rounds",
    "rounds",
    "Rounds by outcome (recovered, bonus, plain, failed, cancelled), and by the source of the proposal (draft, ngram, "
    "prediction, heads, plain).",
    "outcome",
    "rung",
)
PROMPT_TOKENS = _counter("prompt_tokens", "tokens", "Prompt tokens of turns that have generated a token.")
GENERATION_TOKENS = _counter("generation_tokens", "tokens", "Tokens that rounds committed.")
PREFIX_CACHE_QUERIES = _counter("prefix_cache_queries", "tokens", "Prompt tokens looked up in the verifiers' caches.")
PREFIX_CACHE_HITS = _counter("prefix_cache_hits", "tokens", "Prompt tokens found in the verifiers' caches.")
LOST_CONTEXT_TOKENS = _counter(
    "lost_context_tokens",
    "tokens",
    "Tokens of a session that the prompt of its next message does not share: the chat template or the tokenizer gives "
    "other ids. Their KV is computed again.",
)
REQUESTS_SUCCEEDED = _counter("request_success", "turns", "Turns that ended, by finish reason.", "finished_reason")
REQUESTS_FAILED = _counter(
    "request_failure", "turns", "Turns that failed, by the reason that the client gets.", "reason"
)
REQUESTS_REJECTED = _counter("requests_rejected", "requests", "Messages and generations refused, by reason.", "reason")
CALLS_REFUSED = _counter(
    "calls_refused",
    "calls",
    "Calls and Chat commands that ended with an error, by method and reason.",
    "method",
    "reason",
)
STORE_WRITABLE = _gauge(
    "store_writable", "1", "1 if sessions can be written, 0 if the disk is full or the database is away."
)
DRAFT_FALLBACKS = _counter(
    "draft_fallbacks",
    "requests",
    "Requests that a draft did not answer, by reason. The turn continued without a proposal.",
    "address",
    "reason",
)
DRAFT_RECOVERIES = _counter(
    "draft_recoveries", "events", "Times that a draft answered again after a failure.", "address"
)
DRAFT_FAILOVERS = _counter(
    "draft_failovers", "sessions", "Sessions that moved to another draft because theirs was away."
)
DRAFT_VERIFIED_TOKENS = _counter(
    "draft_verified_tokens", "tokens", "Tokens verified that a draft had proposed.", "address"
)
DRAFT_ACCEPTED_TOKENS = _counter(
    "draft_accepted_tokens", "tokens", "Tokens accepted that a draft had proposed.", "address"
)
TASK_DRAFT_TOKENS = _counter(
    "task_draft_tokens",
    "tokens",
    "Draft tokens verified, by the task of the request, and by the first 8 digits of the draft's fingerprint or the source "
    "of the proposal. They count when their turn ends. A process has at most 32 tasks at a time; further ones are `other`.",
    "task",
    "draft",
)
TASK_ACCEPTED_TOKENS = _counter("task_accepted_tokens", "tokens", "Draft tokens accepted, likewise.", "task", "draft")
TARGET_CHANGED = _gauge(
    "target_changed_timestamp_seconds",
    "s",
    "Time since the epoch at which an orchestrator of the store first served this target after another one; absent if "
    "none did.",
)
DRAFT_HINT_TOKENS_PER_POS = _counter(
    "draft_hint_tokens_per_pos",
    "tokens",
    "Tokens verified of a draft's hints, by the first 8 digits of its fingerprint and the position in the hint, from 0.",
    "draft",
    "position",
)
DRAFT_HINT_ACCEPTED_PER_POS = _counter(
    "draft_hint_accepted_tokens_per_pos", "tokens", "Tokens accepted, likewise.", "draft", "position"
)
DRAFT_TURN_TOKENS = _counter(
    "draft_turn_tokens",
    "tokens",
    "Tokens of turns whose session drafted with a draft, after the first ones, by its fingerprint.",
    "draft",
)
DRAFT_TURN_SECONDS = _counter(
    "draft_turn_seconds", "s", "Time of these tokens. Tokens over seconds is the speed of a session.", "draft"
)
DRAFT_TRIAL_SHARE = _gauge(
    "draft_trial_share", "1", "Share of the sessions that try a draft (slipstream swap), while it is on trial.", "draft"
)
VERIFY_RETRIES = _counter("verify_retries", "requests", "Verifications that were retried, by reason.", "reason")
VERIFIER_FAILOVERS = _counter("verifier_failovers", "sessions", "Sessions that moved to another verifier.")
SPECULATION_SWITCHED_OFF = _counter(
    "speculation_switched_off", "events", "Times that a session stopped drafting because it did not pay."
)
RECONNECTS = _counter(
    "peer_reconnects", "streams", "Streams to a peer after the first one, if they brought an answer.", "peer", "address"
)
PEER_FAULTS = _counter(
    "peer_faults",
    "messages",
    "Invalid messages from a peer, by the field that was wrong. wire_version: the peer's release does not fit.",
    "peer",
    "address",
    "field",
)
SESSIONS_EXPIRED = _counter("sessions_expired", "sessions", "Sessions that expired after being idle.")
SPANS_FOLDED = _counter("rounds_not_traced", "rounds", "Rounds of traced turns that have no span of their own.")

REQUESTS_RUNNING = _gauge(
    "num_requests_running",
    "requests",
    "Running turns; in a model service, items that took part in the last step or wait for a hint.",
)
REQUESTS_WAITING = _gauge(
    "num_requests_waiting",
    "requests",
    "Turns that wait for an admission permit and messages that wait in their chat; in a model service, items that were "
    "ready and had no part in the last step, or that have not begun.",
)
TURN_PLACES = _gauge("num_turn_places", "turns", "Admission permits: turns that may run at once.")
TURN_PLACES_SET_BY = _gauge(
    "turn_places_set_by",
    "1",
    "Always 1. The label names what sets the number of admission permits: max_running_turns (the flag), measured (the "
    "verifiers' steps), or nothing (no verifier has been reached yet).",
    "source",
)
ADMISSION_LIMIT = _gauge(
    "admission_limit",
    "1",
    "Limits of admission: turns (permits), kv_tokens (tokens that fit into KV memory; absent if --max-running-turns is set) "
    "and queue (requests that wait).",
    "limit",
)
ADMISSION_USED = _gauge("admission_used", "1", "How much of each admission_limit is used.", "limit")
ADMISSION_REFUSED = _counter(
    "admission_refused",
    "requests",
    "Requests refused as OVERLOADED, by the limit that was reached: turns, kv_tokens, prompts (earlier prompts have to be "
    "read first), deadline (the request would end too late), queue.",
    "limit",
)
SESSIONS = _gauge("num_sessions", "sessions", "Sessions of this process.")
SESSIONS_NOT_DRAFTING = _gauge(
    "num_sessions_speculation_off",
    "sessions",
    "Sessions whose running turn decodes without the draft because drafting does not pay.",
)
PEER_SESSIONS = _gauge("peer_sessions", "sessions", "Sessions that use a peer.", "peer", "address")
PEER_REACHABLE = _gauge("peer_reachable", "1", "1 if the peer reports that it serves, else 0.", "peer", "address")
INFO = _gauge(
    "info",
    "1",
    "Always 1. The labels describe the service and its model. Fingerprints are those of GetServerInfo.",
    "service",
    "version",
    "model",
    "weights_fingerprint",
    "tokenizer_fingerprint",
    "device",
    "dtype",
    "sampling_version",
)

TIME_TO_FIRST_TOKEN = _histogram(
    "time_to_first_token_seconds", "s", "Time from the request for a turn to its first token.", _WAITS
)
PLACE_WAIT = _histogram(
    "turn_place_wait_seconds", "s", "Time from the request for a turn to its admission permit.", _WAITS
)
INTER_TOKEN_LATENCY = _histogram(
    "inter_token_latency_seconds",
    "s",
    "Time for each token after a turn's first round: the round's time divided by its tokens.",
    _STEPS,
)
E2E_LATENCY = _histogram("e2e_request_latency_seconds", "s", "Time from the request for a turn to its end.", _WAITS)
ROUND_TIME = _histogram("round_seconds", "s", "Time of a round, from its plan to its answer.", _STEPS)
VERIFY_TIME = _histogram("verify_seconds", "s", "Time of a verification's forwards, by the verifier's clock.", _STEPS)
DRAFT_TIME = _histogram("draft_seconds", "s", "Time of a draft request's forwards, by the draft's clock.", _STEPS)
DRAFT_WAIT = _histogram("draft_wait_seconds", "s", "Time that a round waited for its proposal.", _STEPS)
QUEUE_TIME = _histogram(
    "queue_seconds",
    "s",
    "Time of a round at a peer outside its forwards: for a place in a step, for KV pages, or before the first forward.",
    _STEPS,
    "peer",
)
NETWORK_TIME = _histogram(
    "network_seconds", "s", "Time of a request beyond what the peer itself reports.", _STEPS, "peer"
)
VERIFIER_IDLE = _histogram(
    "verifier_idle_seconds",
    "s",
    "Time of a round in which the verifier had nothing to do for the session: its run waited for a hint, or the next "
    "request of the ratio test was on its way.",
    _STEPS,
)
WINDOW_ACCEPTANCE = _histogram(
    "window_acceptance_ratio",
    "1",
    "Acceptance over the session's last 200 draft tokens, observed at every round.",
    _SHARES,
)

# --- a model service's

SEQUENCES = _gauge("num_sequences", "sequences", "Open handles, each under a lease.")
KV_USAGE = _gauge("kv_cache_usage_perc", "1", "Share of KV pages that open sequences hold, from 0 to 1.")
KV_PAGES = _gauge(
    "kv_pages", "pages", "KV pages by state: held by open sequences, cached for prefix reuse, or free.", "state"
)
STEPS = _counter("engine_steps", "steps", "Forwards of the engine.")
STEP_TOKENS = _histogram("step_tokens", "tokens", "Tokens of a forward, over all sequences.", _COUNTS)
STEP_ITEMS = _histogram("step_items", "items", "Items that took part in a forward.", _COUNTS)
STEP_TIME = _histogram("step_seconds", "s", "Time of a forward, with the choice of tokens.", _STEPS)
WAITING_BY_REASON = _gauge(
    "num_requests_waiting_by_reason",
    "requests",
    "Items of num_requests_waiting by what they wait for: a place in a step that is full, KV pages, or their first step.",
    "reason",
)
PAUSED = _gauge("num_requests_paused", "requests", "Runs and guesses that wait for their caller: a grant or a commit.")
SAT_OUT_STEPS = _counter(
    "sat_out_steps",
    "steps",
    "Steps that items sat out although they were ready, summed over items, by what they lacked: a place, or KV pages.",
    "reason",
)
WAITING_TIME = _counter(
    "item_waiting_seconds",
    "s",
    "Seconds that items waited, summed over items, by what they waited for: a place in a step, KV pages, or a hint. "
    "Its rate is the mean number of items that wait.",
    "reason",
)
OLDEST_WAIT = _gauge(
    "oldest_wait_seconds", "s", "Time for which the item that has waited longest has sat out steps; 0 if none does."
)
ITEM_QUEUE_TIME = _histogram(
    "item_queue_seconds",
    "s",
    "Time from an item's arrival to its first forward. A run has one such time, however long it goes on.",
    _STEPS,
)
ITEMS = _counter("items", "items", "Items answered, by outcome: ok, or the reason of the error.", "outcome")
PREEMPTIONS = _counter(
    "num_preemptions",
    "sequences",
    "Sequences that lost their KV pages to other sequences. Their KV is computed again when they continue.",
)
HEAD_GUESSES = _counter("head_guesses", "guesses", "Guesses of the target's heads, each after a step of one run.")
HEAD_TIME = _counter("head_seconds", "s", "Time of guesses of the target's heads. The steps of all runs wait for it.")
COLLECTING = _gauge(
    "collecting", "1", "1 while positions are collected, 0 if collecting is off or has stopped because of an error."
)
COLLECTED_ROWS = _counter("collected_rows", "rows", "Positions of the target written to the folder of --collect.")
COLLECT_DROPPED_ROWS = _counter(
    "collect_dropped_rows",
    "rows",
    "Positions that were to be collected and were not written: writing was too slow, or has failed.",
)
COLLECTED_BYTES = _counter("collected_bytes", "bytes", "Bytes written to the folder of --collect.")

# --- the gateway's

GATEWAY_REQUESTS = _counter(
    "gateway_requests", "requests", "HTTP requests that were answered, by endpoint and by status.", "endpoint", "status"
)
GATEWAY_RUNNING = _gauge(
    "gateway_num_requests_running", "requests", "HTTP requests that are being answered, also the one for metrics."
)
GATEWAY_LATENCY = _histogram(
    "gateway_e2e_request_latency_seconds",
    "s",
    "Time from an HTTP request to the end of its response.",
    _WAITS,
    "endpoint",
)
GATEWAY_TIME_TO_FIRST_TOKEN = _histogram(
    "gateway_time_to_first_token_seconds",
    "s",
    "Time from an HTTP request to the first token of its answers.",
    _WAITS,
    "endpoint",
)
GATEWAY_PROMPT_TOKENS = _counter(
    "gateway_prompt_tokens", "tokens", "Prompt tokens of HTTP requests. Several answers to a prompt count it once."
)
GATEWAY_GENERATION_TOKENS = _counter("gateway_generation_tokens", "tokens", "Tokens of answers to HTTP requests.")

# --- what all services have

ASYNCIO_TASKS = _gauge(
    "asyncio_tasks",
    "tasks",
    "Tasks of the event loop. The number falls back when the load ends; if it only grows, tasks leak.",
)

SHARED_BY_ALL = (INFO, ASYNCIO_TASKS, REQUESTS_RUNNING, REQUESTS_WAITING, PREFIX_CACHE_QUERIES, PREFIX_CACHE_HITS)

OF_THE_ORCHESTRATOR = (
    *SHARED_BY_ALL,
    DRAFTS,
    DRAFT_TOKENS,
    ACCEPTED_TOKENS,
    DRAFT_TOKENS_PER_POS,
    ACCEPTED_TOKENS_PER_POS,
    ROUNDS,
    PROMPT_TOKENS,
    LOST_CONTEXT_TOKENS,
    GENERATION_TOKENS,
    REQUESTS_SUCCEEDED,
    REQUESTS_FAILED,
    REQUESTS_REJECTED,
    CALLS_REFUSED,
    STORE_WRITABLE,
    DRAFT_FALLBACKS,
    DRAFT_RECOVERIES,
    DRAFT_FAILOVERS,
    DRAFT_VERIFIED_TOKENS,
    DRAFT_ACCEPTED_TOKENS,
    TASK_DRAFT_TOKENS,
    TASK_ACCEPTED_TOKENS,
    TARGET_CHANGED,
    DRAFT_HINT_TOKENS_PER_POS,
    DRAFT_HINT_ACCEPTED_PER_POS,
    DRAFT_TURN_TOKENS,
    DRAFT_TURN_SECONDS,
    DRAFT_TRIAL_SHARE,
    VERIFY_RETRIES,
    VERIFIER_FAILOVERS,
    SPECULATION_SWITCHED_OFF,
    RECONNECTS,
    PEER_FAULTS,
    SESSIONS_EXPIRED,
    SPANS_FOLDED,
    SESSIONS,
    SESSIONS_NOT_DRAFTING,
    PEER_SESSIONS,
    TURN_PLACES,
    TURN_PLACES_SET_BY,
    ADMISSION_LIMIT,
    ADMISSION_USED,
    ADMISSION_REFUSED,
    PEER_REACHABLE,
    PLACE_WAIT,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    E2E_LATENCY,
    ROUND_TIME,
    VERIFY_TIME,
    DRAFT_TIME,
    DRAFT_WAIT,
    QUEUE_TIME,
    NETWORK_TIME,
    VERIFIER_IDLE,
    WINDOW_ACCEPTANCE,
)

OF_A_MODEL_SERVICE = (
    *SHARED_BY_ALL,
    SEQUENCES,
    KV_USAGE,
    KV_PAGES,
    STEPS,
    STEP_TOKENS,
    STEP_ITEMS,
    STEP_TIME,
    WAITING_BY_REASON,
    PAUSED,
    SAT_OUT_STEPS,
    WAITING_TIME,
    OLDEST_WAIT,
    ITEM_QUEUE_TIME,
    ITEMS,
    PREEMPTIONS,
    HEAD_GUESSES,
    HEAD_TIME,
    COLLECTING,
    COLLECTED_ROWS,
    COLLECT_DROPPED_ROWS,
    COLLECTED_BYTES,
)

OF_THE_GATEWAY = (
    INFO,
    GATEWAY_REQUESTS,
    GATEWAY_RUNNING,
    GATEWAY_LATENCY,
    GATEWAY_TIME_TO_FIRST_TOKEN,
    GATEWAY_PROMPT_TOKENS,
    GATEWAY_GENERATION_TOKENS,
)

REMOVED = {
    "slipstream_branch_hits_total, slipstream_branch_misses_total": "The draft prepares for no particular answer any more: "
    "it sends hints, and the verifier uses those that fit.",
    "label `way` of slipstream_rounds_total": "The draft works beside the target at all times.",
}
"""Metrics and labels that there were, and why they are gone."""
