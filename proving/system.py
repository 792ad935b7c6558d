"""The served system of one cell: orchestrator, draft and one or two verifiers, each a process, with
proxies between."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

import grpc
import psutil

from proving.certificates import Certified
from proving.chaos.clock import ClockOfDay
from proving.pairs import COMPILED, CUDA, GGUF, LLAMACPP, RANK_COUNT, RANKS, TORCH, Pair
from proving.proxy import Proxy, ProxyThread
from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from slipstream.client import Client
from slipstream.engine.llamacpp.backend import STREAM_MULTIPLE

_RECONNECT_SECONDS = 120.0

START_SECONDS = 300.0

RANK_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of a cell's processes. ``kv_token_count`` None means plenty. ``session_count``,
    ``common_length`` and ``longest_length`` tell what the processes will meet: sessions at a time,
    and lengths in tokens at a turn's end."""

    pair: Pair
    session_count: int
    common_length: int
    longest_length: int
    page_size: int = 16
    prefill_chunk: int = 256
    max_step_tokens: int = 512
    kv_token_count: int | None = None
    verifier_count: int = 1
    draft: Path | None = None
    """Draft model to use instead of the pair's own."""
    proxied: bool = False
    process_count: int = 1
    """Number of orchestrator processes behind one port."""
    orchestrator_flags: tuple[str, ...] = ()
    steps_clocks: bool = False
    """True if the processes' time of day can be set."""
    certified: bool = False
    """True if the processes use mutual TLS."""


class System:
    """Runs the processes as a context. Inside it the orchestrator is healthy; after it no process
    is left."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.verifier_proxies: list[Proxy] = []
        self.draft_proxy: Proxy | None = None
        self._verifier_addresses = [free_address() for _ in range(setup.verifier_count)]
        self._draft_address = free_address()
        self.orchestrator_address = free_address()
        self._proxy_thread = ProxyThread() if setup.proxied else None
        self._store = tempfile.TemporaryDirectory(prefix="slipstream-sessions-")
        self.clock = ClockOfDay(Path(self._store.name)) if setup.steps_clocks else None
        self.certified = Certified(Path(self._store.name)) if setup.certified else None
        self._services: dict[str, Service] = {}
        # A service ends with the thread that started it (slipstream/cli/child.py): this one lives
        # as long as the system.
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
            files = self.certified.files if self.certified else None
            self.verifier_proxies = [self._proxy_thread.open(free_address(), upstream, files) for upstream in verifiers]
            self.draft_proxy = self._proxy_thread.open(free_address(), draft, files)
            verifiers, draft = [proxy.address for proxy in self.verifier_proxies], self.draft_proxy.address
        self._peers = ["--verifier", ",".join(verifiers), "--draft", draft]
        self.start_orchestrator()
        for name in list(self._services):
            self.wait_for(name)

    def wait_for(self, name: str) -> None:
        """Wait until a service is healthy: "draft", "orchestrator", "verifier 0"."""
        self._services[name].wait_until_healthy(START_SECONDS)

    def start_verifier(self, index: int) -> None:
        """Start a verifier, or start it again after `kill`. Does not wait for it."""
        setup = self.setup
        flags = ["--model", str(setup.pair.target), "--dtype", setup.pair.dtype, "--page-size", str(setup.page_size)]
        flags += ["--prefill-chunk", str(setup.prefill_chunk), "--max-step-tokens", str(setup.max_step_tokens)]
        flags += ["--kv-memory-mib", str(_kv_memory_mib(setup)), "--threads", "1", "--drain-seconds", "0"]
        flags += [*self._engine_flags(setup.pair.target), *self._peer_flags()]
        if setup.pair.backend == RANKS:
            flags += ["--tensor-parallel-size", str(RANK_COUNT), "--rank-patience-seconds", str(RANK_PATIENCE_SECONDS)]
        self._start(f"verifier {index}", "verifier_service", self._verifier_addresses[index], flags)

    def start_orchestrator(self) -> None:
        """Start the orchestrator, or start it again after `kill`. Does not wait for it. Its
        sessions are in a file."""
        flags = [*self._peers, "--store", f"{self._store.name}/sessions.db"]
        # Patience for restarts on a busy machine; it decides when a turn fails, never what it says.
        flags += ["--draft-deadline-seconds", "5", "--verifier-patience-seconds", "120", "--drain-seconds", "1"]
        # As many as may meet in too little memory: what is taken from one for another has to come
        # back the same.
        flags += ["--queue-seconds", "600", "--max-running-turns", "64"]
        flags += ["--process-count", str(self.setup.process_count), *self.setup.orchestrator_flags]
        flags += self.certified.orchestrator_flags() if self.certified else []
        self._start("orchestrator", "orchestrator", self.orchestrator_address, flags)

    def start_draft(self, other: Path | None = None) -> None:
        """Start the draft, start it again after `kill`, or start another model's. Does not wait for
        it."""
        model = other or self.setup.draft or self.setup.pair.draft
        flags = ["--model", str(model), "--dtype", "float32", "--threads", "1", "--drain-seconds", "0"]
        flags += ["--target-tokenizer", str(self.setup.pair.target)]
        flags += [*self._engine_flags(model), *self._peer_flags()]
        self._start("draft", "draft_service", self._draft_address, flags)

    def _engine_flags(self, model: Path) -> list[str]:
        backend = self.setup.pair.backend
        if backend == LLAMACPP and model.is_dir():  # another draft
            return []
        if backend == RANKS:
            return []
        if backend == CUDA:
            return ["--engine", TORCH, "--device", CUDA]
        return ["--engine", COMPILED if backend == GGUF else backend]

    def pid(self, name: str) -> int:
        """Return the process id of a service."""
        return self._services[name].process.pid

    def client(self) -> Client:
        """Open a client of the orchestrator that waits if the orchestrator is away."""
        if self.certified is not None:
            return self.certified.client(self.orchestrator_address, _RECONNECT_SECONDS)
        return Client(self.orchestrator_address, reconnect=_RECONNECT_SECONDS)

    def connect(self, name: str) -> grpc.Channel:
        """Return a channel to a service, behind any proxy."""
        service = self._services[name]
        return service.connect(service.address)

    def cut_connections(self) -> None:
        """Cut all connections that go through proxies."""
        assert self._proxy_thread is not None
        self._proxy_thread.start_again()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a service by a signal, and wait for its end."""
        process = self._services[name].process
        process.send_signal(number)
        process.wait()

    def lose_rank(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the last rank of a service, and wait for the end of the group."""
        process = self._services[name].process
        psutil.Process(process.pid).children()[-1].send_signal(number)
        process.wait()

    def _start(self, name: str, module: str, address: str, flags: Sequence[str]) -> None:
        # The old one keeps its place until a new one takes it: others may ask it meanwhile.
        if name in self._services:
            self._services[name].stop()
        environment = {} if self.clock is None else self.clock.environment
        start = self._starter.submit(
            Service, name.replace(" ", "-"), module, address, flags, environment, *self._how(name)
        )
        self._services[name] = start.result()

    def _peer_flags(self) -> list[str]:
        return self.certified.peer_flags() if self.certified else []

    def _how(self, name: str) -> list[Callable[[str], grpc.Channel]]:
        if self.certified is None:
            return []
        return [partial(self.certified.connect, to_orchestrator=name == "orchestrator")]

    def _stop(self) -> None:
        for service in reversed(list(self._services.values())):
            service.stop()
        if self._proxy_thread is not None:
            self._proxy_thread.__exit__(None, None, None)
        self._starter.shutdown()
        self._store.cleanup()


def _kv_memory_mib(setup: Setup) -> float:
    if setup.kv_token_count is None:
        return 1024.0 if setup.pair.backend == LLAMACPP else 256.0  # its sequences take a whole context each
    count = setup.kv_token_count
    if setup.pair.backend == LLAMACPP:
        count = (count // STREAM_MULTIPLE + 1) * STREAM_MULTIPLE  # it is rounded down, and the longest must fit
    return count * setup.pair.kv_bytes_per_token() / 2**20
