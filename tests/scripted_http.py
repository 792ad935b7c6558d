"""A server of OpenAI's API on loopback that answers as a test tells it to: well, late, in part or
not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Way = Literal["well", "without usage", "refuses", "breaks off", "fails in the stream", "waits"]

TOKENS = ("one ", "two ", "three ")
RETRY_SECONDS = 0.01


class ScriptedHttp:
    """A server whose way can be changed at any time."""

    def __init__(self) -> None:
        self.way: Way = "well"
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        """Bodies of the requests for answers."""
        self.tokens: list[str | None] = []
        """Authorization of each request."""
        self.let_go = threading.Event()

    @contextmanager
    def serving(self) -> Iterator[ScriptedHttp]:
        """Inside, it answers at its url."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.let_go.set()
            server.shutdown()
            thread.join()
            server.server_close()


def _handler(script: ScriptedHttp) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            script.tokens.append(self.headers["authorization"])
            if self.path == "/v1/models":
                self._json(200, {"data": [{"id": "scripted"}]})
            else:
                self._json(404, {"error": {"message": "no such path", "type": "not_found_error"}})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path not in ("/v1/chat/completions", "/v1/completions"):
                self._json(404, {"error": {"message": "no such path", "type": "not_found_error"}})
                return
            script.requests.append(body)
            if script.way == "refuses":
                error = {"message": "too many", "type": "rate_limit_error", "code": None}
                self._json(429, {"error": error}, {"retry-after": str(RETRY_SECONDS)})
                return
            self._stream()

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            for number, token in enumerate(TOKENS):
                if number == 1 and script.way == "waits":
                    script.let_go.wait()
                if number == 1 and script.way == "breaks off":
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.close()
                    return
                if number == 1 and script.way == "fails in the stream":
                    self._event({"error": {"message": "gone", "code": "VERIFIER_LOST"}})
                    break
                chunk = {"delta": {"content": token}} if self.path.startswith("/v1/chat") else {"text": token}
                self._event({"choices": [chunk]})
            if script.way != "without usage":
                usage = {"prompt_tokens": 11, "completion_tokens": 2 * len(TOKENS)}
                told = {"num_draft_tokens": 8, "num_accepted_draft_tokens": 4, "num_spec_steps": 2}
                self._event({"choices": [], "usage": usage, "metrics": {"speculative_decoding": told}})
            self._part(b"data: [DONE]\n\n")
            self._part(b"")

        def _event(self, content: Any) -> None:
            self._part(b"data: " + json.dumps(content).encode() + b"\n\n")

        def _part(self, content: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
            self.wfile.flush()

        def _json(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
