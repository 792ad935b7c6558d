"""A hub on loopback with one model, whose weights come only in part until the test lets go."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "a" * 40
WEIGHTS = "model.safetensors"


class FakeHub:
    """Serves the small files of a directory, and zeros as weights."""

    def __init__(self, directory: Path, weights_byte_count: int) -> None:
        self.files = {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".safetensors"}
        self.files[WEIGHTS] = bytes(weights_byte_count)
        self.let_go = threading.Event()
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator[FakeHub]:
        """Inside, it answers at its url."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def _answer(self, *, body: bool) -> None:
                content = hub.content(self.path)
                self.send_response(404 if content is None else 200)
                content = content or b""
                self.send_header("Content-Length", str(len(content)))
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", f'"{sha256(content).hexdigest()}"')
                self.end_headers()
                if not body:
                    return
                if self.path.endswith(WEIGHTS):
                    half = len(content) // 2
                    self.wfile.write(content[:half])
                    hub.let_go.wait()
                    content = content[half:]
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.let_go.set()
            server.shutdown()
            thread.join()
            server.server_close()

    def content(self, path: str) -> bytes | None:
        """Return what is at a path of the hub's API."""
        if "/tree/" in path:
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": sha256(content).hexdigest()}
                for name, content in self.files.items()
            ]
            return json.dumps(entries).encode()
        if path.startswith("/api/models/"):
            siblings = [{"rfilename": name, "size": len(content)} for name, content in self.files.items()]
            return json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings}).encode()
        return self.files.get(path.rpartition("/")[2])
