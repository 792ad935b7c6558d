"""A server that answers as vLLM 0.32 does, as far as a verifier asks it. Its logits are made of the
tokens by arithmetic, so that a test can work out every text."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from slipstream.cli.local import free_address
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling.choose import choose
from slipstream.sampling.row import Choice, Row
from slipstream.sampling.rule import SamplingRule

MODEL = str(embedded_directory("target"))
"""The directory whose tokenizer and config the server's model has."""
VOCABULARY_SIZE = 4096
CONTEXT = 2048


def logprobs_after(tokens: Sequence[int]) -> NDArray[np.float32]:
    """The log-probabilities of the token after these: an arbitrary function of all of them."""
    return _logprobs_after(tuple(tokens))


@lru_cache(maxsize=1024)
def _logprobs_after(tokens: tuple[int, ...]) -> NDArray[np.float32]:
    seed = [len(tokens), sum(tokens), sum(place * token for place, token in enumerate(tokens))]
    logits = np.random.default_rng(seed).normal(scale=5.0, size=VOCABULARY_SIZE)
    logprobs: NDArray[np.float32] = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
    return logprobs


def chosen(tokens: Sequence[int], rule: SamplingRule, allowed: NDArray[np.bool_] | None = None) -> Choice:
    """Return what a target with all of a row's log-probabilities chooses next."""
    return choose(logprobs_after(tokens)[np.newaxis], [Row(rule, len(tokens), tokens, allowed)])[0]


def text_after(prompt: Sequence[int], count: int, rule: SamplingRule) -> list[int]:
    """The tokens that a rule chooses after a prompt, up to an end token."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(chosen(tokens, rule).token)
        if tokens[-1] in rule.ends:
            break
    return tokens[len(prompt) :]


class FakeVllm:
    """A server whose behaviour can be changed at any time."""

    engine = "vllm"
    """Value of --engine for it."""

    def __init__(self) -> None:
        self.most_logprobs = VOCABULARY_SIZE
        self.takes_ids = True
        self.caches = True
        self.mixed_rows = 0
        """Rows to come that list what vLLM lists where another client asks for ids."""
        self.tokenizer = Tokenizer.from_file(f"{MODEL}/tokenizer.json")
        self.version = "0.32.0"
        self.root = MODEL
        self.prefix = ""
        """Path that its API is under."""
        self.models: list[dict[str, Any]] | None = None
        """Replaces its list of models."""
        self.logprobs_after: Callable[[Sequence[int]], NDArray[np.float32]] = logprobs_after
        """Its weights."""
        self.requests: list[dict[str, Any]] = []
        """Bodies of the requests for completions."""
        self.authorizations: set[str | None] = set()
        self.fault: bytes | tuple[int, str] | None = None
        """Bytes that replace the body of each completion, or a status and an error's message."""
        self.stream_fault: bytes | None = None
        """Bytes that end the next stream after its first row."""
        self.rows_until_lost: int | None = None
        """Rows after which the server breaks its connections off and takes no more."""
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.port = int(free_address().rpartition(":")[2])  # it is started again there
        self._server: ThreadingHTTPServer | None = None
        self._open: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """Inside, it answers at its url."""
        self.begin()
        try:
            yield self
        finally:
            self.may_answer.set()
            self.end()

    def begin(self) -> None:
        """Listen, at the port that it had before if there was one."""
        self.rows_until_lost = None
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self.handler())
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handler(self) -> type[Any]:
        """Return the class that answers a connection's requests."""
        return handler_of(self)

    def end(self) -> None:
        """Break all connections off and listen no more."""
        if (server := self._server) is not None:
            server.shutdown()
            server.server_close()
        self.drop_connections()
        self._server = None

    def drop_connections(self) -> None:
        """Break all connections off."""
        for connection in [*self._open]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def open_count(self) -> int:
        """Connections that are open."""
        return len(self._open)

    @property
    def is_serving(self) -> bool:
        """True while it listens, and until its last connection is broken off."""
        return self._server is not None

    def count_row(self) -> None:
        """Record that a row is about to be told. ConnectionError if the server dies before it."""
        if self.rows_until_lost is None:
            return
        self.rows_until_lost -= 1
        if self.rows_until_lost < 0:
            threading.Thread(target=self.end, daemon=True).start()
            raise ConnectionError


def handler_of(fake: FakeVllm) -> type[Any]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            fake._open.add(self.connection)

        def finish(self) -> None:
            fake._open.discard(self.connection)
            with suppress(OSError):
                super().finish()

        def parse_request(self) -> bool:
            parsed = super().parse_request()
            if parsed:
                assert self.path.startswith(fake.prefix)
                self.path = self.path.removeprefix(fake.prefix)
            return parsed

        def do_GET(self) -> None:
            model = {"id": "served", "root": fake.root, "max_model_len": CONTEXT}
            models = {"data": [model] if fake.models is None else fake.models}
            answers: dict[str, object] = {"/version": {"version": fake.version}, "/v1/models": models}
            if self.path == "/metrics":
                self._send(
                    f'vllm:cache_config_info{{enable_prefix_caching="{fake.caches}"}} 1\n'.encode(), "text/plain"
                )
                return
            self._json(answers[self.path])

        def do_POST(self) -> None:
            fake.authorizations.add(self.headers["authorization"])
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert fake.may_answer.wait(60)
            if self.path == "/tokenize":
                assert body["add_special_tokens"] is False
                self._json({"tokens": fake.tokenizer.encode(body["prompt"], add_special_tokens=False).ids})
                return
            assert self.path == "/v1/completions"
            fake.requests.append(body)
            with suppress(ConnectionError):
                self._complete(body)
                return
            self.close_connection = True

        def _complete(self, body: dict[str, Any]) -> None:
            if isinstance(fake.fault, bytes):
                self._send(fake.fault, "application/json")
            elif fake.fault is not None:
                self._json({"error": {"message": fake.fault[1], "type": "Error", "code": fake.fault[0]}}, fake.fault[0])
            elif (refusal := _refusal(fake, body)) is not None:
                self._json({"error": {"message": refusal, "type": "BadRequestError", "code": 400}}, 400)
            elif body.get("stream"):
                self._stream(body)
            else:
                self._json({"choices": [_choice(fake, body, at) for at in range(len(body["prompt"]))]})

        def _stream(self, body: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            tokens = list(body["prompt"][0])
            for _ in range(body["max_tokens"]):
                assert fake.may_answer.wait(60)
                fake.count_row()
                logprobs = _logprobs(fake, body, tokens)
                tokens.append(int(logprobs["tokens"][0].removeprefix("token_id:")))
                self._part(f"data: {json.dumps({'choices': [{'index': 0, 'logprobs': logprobs}]})}\n\n".encode())
                if fake.stream_fault is not None:
                    self._part(fake.stream_fault)
                    fake.stream_fault = None
                    break
            self._part(b"data: [DONE]\n\n")
            self._part(b"")

        def _part(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def _json(self, value: object, status: int = 200) -> None:
            self._send(json.dumps(value).encode(), "application/json", status)

        def _send(self, data: bytes, kind: str, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


def _refusal(fake: FakeVllm, body: dict[str, Any]) -> str | None:
    if body["logprobs"] > fake.most_logprobs:
        asked = body["logprobs"]
        return f"Requested sample logprobs of {asked}, which is greater than max allowed: {fake.most_logprobs}"
    assert "logprob_token_ids" not in body, "it takes the likeliest tokens from other requests"
    if body.get("allowed_token_ids") == []:
        return "allowed_token_ids is not None and empty!"
    if max(map(len, body["prompt"])) + body["max_tokens"] > CONTEXT:
        return f"This model's maximum context length is {CONTEXT} tokens"
    if body["model"] != "served":
        return "no such model"
    assert (body["temperature"], body["top_p"], body["repetition_penalty"], body["ignore_eos"]) == (0, 1, 1, True)
    return None


def _choice(fake: FakeVllm, body: dict[str, Any], at: int) -> dict[str, Any]:
    prompt = body["prompt"][at]
    assert prompt and all(0 <= token < VOCABULARY_SIZE for token in prompt)
    fake.count_row()
    found = {"index": at, "logprobs": _logprobs(fake, body, prompt)}
    if (count := body.get("prompt_logprobs")) is not None:
        rows: list[dict[str, Any] | None] = [None]
        for end in range(1, len(prompt)):
            row = fake.logprobs_after(prompt[:end])
            listed = [*likeliest_of(row, count), prompt[end]]
            rows.append({str(token): {"logprob": float(row[token])} for token in listed})
        found["prompt_logprobs"] = rows
    return found


def _logprobs(fake: FakeVllm, body: dict[str, Any], tokens: Sequence[int]) -> dict[str, Any]:
    row = fake.logprobs_after(tokens)
    best = int(row.argmax())
    if fake.takes_ids and (allowed := body.get("allowed_token_ids")):
        best = min(allowed, key=lambda token: (-row[token], token))
    listed = {token: float(row[token]) for token in (best, *likeliest_of(row, body["logprobs"]))}
    if fake.mixed_rows:
        fake.mixed_rows -= 1
        listed = {best: float(row[best])} | {0: -9999.0}
    return {
        "tokens": [f"token_id:{best}"],
        "token_logprobs": [float(row[best])],
        "top_logprobs": [{f"token_id:{token}": value for token, value in listed.items()}],
    }


def likeliest_of(row: NDArray[np.float32], count: int) -> list[int]:
    found: list[int] = np.argsort(-row, kind="stable")[:count].tolist()
    return found
