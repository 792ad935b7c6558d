"""A hub on loopback with one model, whose weights come only in part until the test lets go."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR

COMMIT = "a" * 40
WEIGHTS = "model.safetensors"


class FakeHub:
    """Serves the small files of a directory, and zeros as weights."""

    def __init__(self, directory: Path, weights_byte_count: int) -> None:
        self.files = {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".safetensors"}
        self.files[WEIGHTS] = bytes(weights_byte_count)
        self.let_go = threading.Event()
        self.url = ""
        self.refusals: dict[str, tuple[int, str]] = {}
        """Status and the hub's name of the error, for paths that hold a text."""
        self.cuts = False
        """If set, the weights' connection ends after half of what was asked for."""
        self.ranges: list[str | None] = []
        """Range of each request for the weights."""

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
                refusal = next((refusal for text, refusal in hub.refusals.items() if text in self.path), None)
                content = None if refusal else hub.content(self.path)
                status, name = refusal or (404, "EntryNotFound")
                whole = len(content or b"")
                start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").partition("-")[0])
                partial = self.headers["Range"] is not None and content is not None
                self.send_response(status if content is None else 206 if partial else 200)
                if content is None:
                    self.send_header("X-Error-Code", name)
                if partial:
                    self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
                content = (content or b"")[start:]
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", f'"{hub.etag(self.path)}"')
                self.end_headers()
                if not body:
                    return
                if self.path.endswith(WEIGHTS):
                    hub.ranges.append(self.headers["Range"])
                    half = len(content) // 2
                    self.wfile.write(content[:half])
                    if hub.cuts:
                        self.close_connection = True
                        self.connection.shutdown(SHUT_RDWR)
                        return
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

    def etag(self, path: str) -> str:
        """Return the hash of what is at a path."""
        return sha256(self.content(path) or b"").hexdigest()

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
