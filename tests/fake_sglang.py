"""A server that answers as SGLang's documentation says, as far as a verifier asks it, with the
arithmetic of `tests.fake_vllm`.

The shapes are those of docs/basic_usage/native_api, docs/basic_usage/sampling_params and
srt/managers/io_struct.py of sgl-project/sglang, and of answers that its issues show.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fake_vllm import VOCABULARY_SIZE, FakeVllm, handler_of, likeliest_of

CONTEXT = 2048


class FakeSGLang(FakeVllm):
    """A server whose behaviour can be changed at any time."""

    engine = "sglang"

    def __init__(self) -> None:
        super().__init__()
        self.version = "0.5.13"
        self.deterministic = True
        self.has_old_names = True
        """Whether it has /get_model_info, which newer ones call /model_info."""
        self.tells_limit = True
        self.streams_increments = False
        self.abort: dict[str, Any] | None = None
        """The finish_reason of all requests."""
        self.answer: object = None
        """Replaces all answers."""

    def handler(self) -> type[Any]:
        return _handler(self)

    def facts(self) -> dict[str, object]:
        """Return what its GET endpoints answer, by their paths."""
        model = {"model_path": self.root, "tokenizer_path": self.root, "is_generation": True}
        server: dict[str, object] = {
            "version": self.version,
            "context_length": None,
            "disable_radix_cache": False,
            "enable_deterministic_inference": self.deterministic,
            "internal_states": [{}],
        }
        if self.tells_limit:
            server["max_req_input_len"] = CONTEXT - 6
        prefix = "/get_" if self.has_old_names else "/"
        models = {"data": [{"id": self.root, "max_model_len": CONTEXT}]}
        return {f"{prefix}model_info": model, f"{prefix}server_info": server, "/v1/models": models}


def _handler(fake: FakeSGLang) -> type[Any]:
    class Handler(handler_of(fake)):  # type: ignore[misc]
        def do_GET(self) -> None:
            facts = fake.facts()
            found = self.path in facts
            self._json(facts[self.path] if found else {"detail": "Not Found"}, 200 if found else 404)

        def do_POST(self) -> None:
            if self.path == "/tokenize":
                super().do_POST()
                return
            assert self.path == "/generate"
            fake.authorizations.add(self.headers["authorization"])
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert fake.may_answer.wait(60)
            fake.requests.append(body)
            _check(body)
            with suppress(ConnectionError):
                self._generate(body)
                return
            self.close_connection = True

        def _generate(self, body: dict[str, Any]) -> None:
            if isinstance(fake.fault, bytes):
                self._send(fake.fault, "application/json")
            elif fake.fault is not None:
                self._json({"error": {"message": fake.fault[1]}}, fake.fault[0])
            elif fake.answer is not None:
                self._json(fake.answer)
            elif body["stream"]:
                self._events(body)
            else:
                self._json(_answer(fake, body, 1))

        def _events(self, body: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for count in range(1, body["sampling_params"]["max_new_tokens"] + 1):
                assert fake.may_answer.wait(60)
                answer = _answer(fake, body, count)
                if fake.streams_increments:
                    for name in ("output_token_logprobs", "output_top_logprobs"):
                        answer["meta_info"][name] = answer["meta_info"][name][-1:]
                self._part(f"data: {json.dumps(answer)}\n\n".encode())
            self._part(b"data: [DONE]\n\n")
            self._part(b"")

    return Handler


def _check(body: dict[str, Any]) -> None:
    sampling = body["sampling_params"]
    assert (sampling["temperature"], sampling["top_p"], sampling["repetition_penalty"]) == (0, 1, 1)
    assert sampling["ignore_eos"] and body["return_logprob"]
    assert body["logprob_start_len"] < len(body["input_ids"]) < CONTEXT - 6
    assert all(0 <= token < VOCABULARY_SIZE for token in body["input_ids"])


def _answer(fake: FakeSGLang, body: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the answer with ``count`` generated tokens."""
    fake.count_row()
    tokens = list(body["input_ids"])
    start = body["logprob_start_len"] if body["logprob_start_len"] >= 0 else len(tokens) - 1
    meta: dict[str, Any] = {
        "id": "0",
        "finish_reason": fake.abort or {"type": "length", "length": count},
        "prompt_tokens": len(tokens),
        "completion_tokens": count,
        "cached_tokens": start,
        "input_token_logprobs": [[None, tokens[start], None]],
        "input_top_logprobs": [None],
        "input_token_ids_logprobs": [None],
        "output_token_logprobs": [],
        "output_top_logprobs": [],
        "output_token_ids_logprobs": [],
    }
    for place in range(start + 1, len(tokens)):
        _tell(fake, body, meta, "input", tokens[:place], tokens[place])
    for _ in range(count):
        best = int(fake.logprobs_after(tokens).argmax())
        _tell(fake, body, meta, "output", tokens, best)
        tokens.append(best)
    if not (fake.takes_ids and body.get("token_ids_logprob")):
        del meta["input_token_ids_logprobs"], meta["output_token_ids_logprobs"]
    return {"text": "", "output_ids": tokens[len(body["input_ids"]) :], "meta_info": meta}


def _tell(
    fake: FakeSGLang, body: dict[str, Any], meta: dict[str, Any], side: str, tokens: Sequence[int], token: int
) -> None:
    row = fake.logprobs_after(tokens)
    meta[f"{side}_token_logprobs"].append(_entries(row, [token])[0])
    meta[f"{side}_top_logprobs"].append(_entries(row, likeliest_of(row, body["top_logprobs_num"])))
    meta[f"{side}_token_ids_logprobs"].append(_entries(row, body.get("token_ids_logprob") or []))


def _entries(row: NDArray[np.float32], tokens: Sequence[int]) -> list[list[Any]]:
    """Return entries as SGLang has them: minus infinity is null in its JSON."""
    values = [float(row[token]) for token in tokens]
    return [
        [None if value == -math.inf else value, int(token), None] for value, token in zip(values, tokens, strict=True)
    ]
