"""OpenAI's usage object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.client import Result


def usage_of(results: Sequence[Result], choice_count: int) -> dict[str, Any]:
    """Return the usage of all answers together. A prompt with several answers counts once."""
    prompts = results[::choice_count]
    prompt = sum(result.prompt_token_count for result in prompts)
    generated = sum(result.generated_token_count for result in results)
    predicted = sum(result.prediction_token_count for result in results)
    accepted = sum(result.prediction_accepted_token_count for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(result.cached_token_count for result in prompts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": predicted - accepted,
        },
    }
