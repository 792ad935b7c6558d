"""The served system of one cell: orchestrator, draft and one or two verifiers, each a process, with proxies between."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from proving.pairs import Pair
from proving.proxy import Proxy, ProxyThread
from slipstream.cli.local import Service, free_address

START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What a cell's processes are told. ``kv_token_count`` None is plenty.

    ``session_count``, ``common_length`` and ``longest_length`` say what they will meet: sessions at a time, and lengths in
    tokens at a turn's end.
    """

    pair: Pair
    dtype: str
    session_count: int
    common_length: int
    longest_length: int
    page_size: int = 16
    prefill_chunk: int = 256
    max_step_tokens: int = 512
    kv_token_count: int | None = None
    verifier_count: int = 1
    draft: Path | None = None
    """Instead of the pair's own."""
    proxied: bool = False


class System:
    """Use as a context: inside it the orchestrator is healthy, after it no process is left."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.verifier_proxies: list[Proxy] = []
        self.draft_proxy: Proxy | None = None
        self._verifier_addresses = [free_address() for _ in range(setup.verifier_count)]
        self._draft_address = free_address()
        self.orchestrator_address = free_address()
        self._proxy_thread = ProxyThread() if setup.proxied else None
        self._services: dict[str, Service] = {}
        # A service ends with the thread that started it (slipstream/cli/child.py): this one lives as long as the system.
        self._starter = ThreadPoolExecutor(1, "starter")

    def __enter__(self) -> System:
        try:
            self._start_all()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start_all(self) -> None:
        for index in range(self.setup.verifier_count):
            self.start_verifier(index)
        self.start_draft()
        verifiers, draft = list(self._verifier_addresses), self._draft_address
        if self._proxy_thread is not None:
            self._proxy_thread.__enter__()
            self.verifier_proxies = [self._proxy_thread.open(free_address(), upstream) for upstream in verifiers]
            self.draft_proxy = self._proxy_thread.open(free_address(), draft)
            verifiers, draft = [proxy.address for proxy in self.verifier_proxies], self.draft_proxy.address
        flags = ["--verifier", ",".join(verifiers), "--draft", draft, "--learnt-directory", ""]
        # Patience for restarts on a busy machine; it decides when a turn fails, never what it says.
        flags += ["--draft-deadline-seconds", "5", "--verifier-patience-seconds", "120", "--drain-seconds", "1"]
        self._start("orchestrator", "orchestrator", self.orchestrator_address, flags)
        for name in list(self._services):
            self.wait_for(name)

    def wait_for(self, name: str) -> None:
        """Until a service is healthy: "draft", "orchestrator", "verifier 0"."""
        self._services[name].wait_until_healthy(START_SECONDS)

    def start_verifier(self, index: int) -> None:
        """Start, or after `kill` start again, a verifier; does not wait for it."""
        setup = self.setup
        flags = ["--model", str(setup.pair.target), "--dtype", setup.dtype, "--page-size", str(setup.page_size)]
        flags += ["--prefill-chunk", str(setup.prefill_chunk), "--max-step-tokens", str(setup.max_step_tokens)]
        flags += ["--kv-memory-mib", str(_kv_memory_mib(setup)), "--threads", "1", "--drain-seconds", "0"]
        self._start(f"verifier {index}", "verifier_service", self._verifier_addresses[index], flags)

    def start_draft(self) -> None:
        """Start, or after `kill` start again, the draft; does not wait for it."""
        model = self.setup.draft or self.setup.pair.draft
        flags = ["--model", str(model), "--dtype", "float32", "--threads", "1", "--drain-seconds", "0"]
        self._start("draft", "draft_service", self._draft_address, flags)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a service by a signal and see it gone."""
        process = self._services[name].process
        process.send_signal(number)
        process.wait()

    def _start(self, name: str, module: str, address: str, flags: Sequence[str]) -> None:
        old = self._services.pop(name, None)
        if old is not None:
            old.stop()
        start = self._starter.submit(Service, name.replace(" ", "-"), module, address, flags, {})
        self._services[name] = start.result()

    def _stop(self) -> None:
        for service in reversed(list(self._services.values())):
            service.stop()
        if self._proxy_thread is not None:
            self._proxy_thread.__exit__(None, None, None)
        self._starter.shutdown()


def _kv_memory_mib(setup: Setup) -> float:
    if setup.kv_token_count is None:
        return 256.0
    return setup.kv_token_count * setup.pair.kv_bytes_per_token(setup.dtype) / 2**20
