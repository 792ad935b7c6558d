"""Every span and attribute name, once. GenAI names follow OpenTelemetry's semantic conventions."""

from __future__ import annotations

# Spans
CHAT = "chat {model}"
ROUND = "round"
PROPOSE = "propose"
VERIFY = "verify"
DRAFT_SERVICE_PROPOSE = "draft_service.propose"
VERIFIER_SERVICE_VERIFY = "verifier_service.verify"

# Attributes of a turn
CONVERSATION_ID = "gen_ai.conversation.id"
OPERATION_NAME = "gen_ai.operation.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_SEED = "gen_ai.request.seed"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TURN = "slipstream.turn"
CACHED_TOKENS = "slipstream.cached_tokens"
ROUND_COUNT = "slipstream.round_count"
ROUNDS_NOT_TRACED = "slipstream.rounds_not_traced"

# Attributes of a round and of what happens in it
ROUND_NUMBER = "slipstream.round"
DRAFT_LENGTH = "slipstream.draft_length"
IN_FLIGHT_LENGTH = "slipstream.in_flight_length"
OVERLAP = "slipstream.overlap"
PROPOSER = "slipstream.proposer"
ACCEPTED_COUNT = "slipstream.accepted_count"
COMMITTED_COUNT = "slipstream.committed_count"
BASE_LENGTH = "slipstream.base_length"
TAIL_LENGTH = "slipstream.tail_length"
HANDLE = "slipstream.handle"
QUEUE_MS = "slipstream.queue_ms"
FORWARD_MS = "slipstream.forward_ms"
PREFILL_MS = "slipstream.prefill_ms"
ERROR_REASON = "slipstream.error_reason"
