"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slipstream.client import TokenLogprobs


def token_text(token: bytes) -> str:
    """Return a token's text. One that holds a part of a character is written as OpenAI does:
    ``bytes:\\xe2\\x80``."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def likeliest(tokens: Sequence[TokenLogprobs], count: int) -> list[TokenLogprobs]:
    """Return tokens with at most ``count`` of their likeliest: the request may have asked for more
    elsewhere."""
    return [replace(token, top=token.top[:count], top_bytes=token.top_bytes[:count]) for token in tokens]


def prompt_logprobs(tokens: Sequence[TokenLogprobs], count: int) -> list[dict[str, Any] | None]:
    """Return vLLM's form of a prompt's log-probabilities. Nothing predicts the first token. The
    rank of a token that is none of the likeliest is unknown."""
    return [None, *map(_ranked, likeliest(tokens, count))]


def _ranked(token: TokenLogprobs) -> dict[str, Any]:
    found = {
        str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": token_text(spelt)}
        for rank, ((token_id, logprob), spelt) in enumerate(zip(token.top, token.top_bytes, strict=True), 1)
    }
    itself = {"logprob": token.logprob, "rank": None, "decoded_token": token_text(token.token_bytes)}
    return {str(token.token_id): itself} | found


def chat_logprobs(tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Return the form of chat completions."""
    return {
        "content": [
            {
                **_chat_token(token.token_bytes, token.logprob),
                "top_logprobs": [
                    _chat_token(spelt, logprob) for (_, logprob), spelt in zip(token.top, token.top_bytes, strict=True)
                ],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def _chat_token(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token_text(token), "logprob": logprob, "bytes": list(token)}


class CompletionLogprobs:
    """Writes the form of completions for one answer, whose tokens come in parts."""

    def __init__(self) -> None:
        self._offset = 0

    def first(self, token: str) -> dict[str, Any]:
        """Return the form of a prompt's first token, which nothing predicts."""
        return {"tokens": [token], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [self._take(token)]}

    def part(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the form of the next tokens."""
        texts = [token_text(token.token_bytes) for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_likeliest(text, token) for text, token in zip(texts, tokens, strict=True)],
            "text_offset": [self._take(text) for text in texts],
        }

    def _take(self, text: str) -> int:
        before, self._offset = self._offset, self._offset + len(text)
        return before


def _likeliest(text: str, token: TokenLogprobs) -> dict[str, float]:
    """Return the likeliest tokens by their text, and the token itself: it may be none of them."""
    found = {token_text(spelt): logprob for (_, logprob), spelt in zip(token.top, token.top_bytes, strict=True)}
    return {**found, text: token.logprob}


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return parts of one answer as one."""
    return {name: [entry for part in parts for entry in part[name]] for name in parts[0]}
