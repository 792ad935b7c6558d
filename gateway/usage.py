"""OpenAI's usage object, and vLLM's statistics of speculation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.client import Result


def usage_of(results: Sequence[Result], choice_count: int, reasoning_token_count: int = 0) -> dict[str, Any]:
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
            "reasoning_tokens": reasoning_token_count,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": predicted - accepted,
        },
    }


class StreamUsage:
    """The ``usage`` of a stream's chunks: absent, null until the last one, or that of the chunk's
    answer so far."""

    def __init__(self, results: Sequence[Result], *, included: bool, running: bool) -> None:
        self._results, self._included, self._running = results, included, running
        self._token_counts = [0] * len(results)

    def add(self, index: int, token_count: int) -> None:
        """Note that an answer has so many more tokens."""
        self._token_counts[index] += token_count

    def part(self, index: int) -> dict[str, Any]:
        """Return the part of a chunk of an answer."""
        if not self._running:
            return {"usage": None} if self._included else {}
        prompt, generated = self._results[index].prompt_token_count, self._token_counts[index]
        return {"usage": {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}}


def metrics_of(results: Sequence[Result]) -> dict[str, Any]:
    """Return the part of a body with vLLM's ``metrics``, which AIPerf reads. It is empty unless the
    request has one answer, and a step of it verified a proposal."""
    if len(results) != 1 or not results[0].draft_count:
        return {}
    (result,) = results
    speculation = {
        "mean_acceptance_length": result.mean_acceptance_length,
        "draft_acceptance_rate": result.acceptance_rate,
        "acceptance_histogram": result.acceptance_histogram,
        "num_spec_steps": result.draft_count,
        "num_accepted_draft_tokens": result.accepted_token_count,
        "num_draft_tokens": result.draft_token_count,
        "num_spec_tokens": len(result.drafted_per_position),
    }
    return {"metrics": {"speculative_decoding": speculation}}
