"""A vLLM server as a process, and its own answers."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from slipstream.cli.local import free_address

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "vllm" / "bin" / "python"
LOGS = ROOT / "build" / "vllm-logs"
END = 2
_START_SECONDS = 900
_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Its threads spin until all are done. With one for each processor, any other process costs a
    # step of 20 ms another 80.
    "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2)),
}


class VllmServer:
    """Use as a context: inside it the server answers. It can be killed and started again."""

    def __init__(self, model: Path, *flags: str, dtype: str = "float32") -> None:
        self.address = free_address()
        self._command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        self._command += ["--served-model-name", "served", "--dtype", dtype, "--max-model-len", "2048"]
        self._command += ["--max-logprobs", "-1", "--block-size", "32", "--port", self.address.rpartition(":")[2]]
        self._command += flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address of the server, as --engine-address takes it."""
        return f"http://{self.address}"

    def __enter__(self) -> VllmServer:
        self.begin()
        self.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def begin(self) -> None:
        """Start the process, without waiting for its model."""
        LOGS.mkdir(parents=True, exist_ok=True)
        with (LOGS / f"{self.address}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env={**os.environ, **_ENVIRONMENT}, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until it answers. RuntimeError if it ends before."""
        give_up = time.monotonic() + _START_SECONDS
        while time.monotonic() < give_up:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            if self._process is None or self._process.poll() is not None:
                break
            time.sleep(0.5)
        raise RuntimeError(f"vLLM does not serve: see {LOGS}/{self.address}.log")

    def kill(self) -> None:
        """Kill the server and its workers, which are of its process group."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def restart(self) -> None:
        """Kill the server and start it again, without waiting."""
        self.kill()
        self.begin()

    def greedy(self, prompt: Sequence[int], count: int, *, ignore_end: bool = False) -> list[int]:
        """The server's own greedy answer, by its public API."""
        body = {"model": "served", "prompt": [*prompt], "max_tokens": count, "temperature": 0}
        body |= {"return_token_ids": True, "ignore_eos": ignore_end, "stop_token_ids": [] if ignore_end else [END]}
        tokens: list[int] = self._asked("/v1/completions", body)["choices"][0]["token_ids"]
        return tokens

    def _asked(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"vLLM refuses {path}: {error.read().decode()[:300]}") from error
