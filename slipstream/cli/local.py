"""The services of a pair, and a gateway, as processes on this machine: started, waited for, and
surely stopped."""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import random
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from slipstream.cli.gateway_process import GATEWAY, GatewayProcess
from slipstream.cli.model_arguments import ARITHMETIC, EMBEDDED
from slipstream.cli.service_process import START_SECONDS, Service, wait_until_healthy
from slipstream.home import expanded

_PORTS = range(18000, 30000)
"""Below what the kernel gives to outgoing connections: a service that is started again must find
its port free."""
_walk = itertools.cycle(_PORTS)
"""From somewhere on, each once before any again: a port drawn by lot may be one that a service
which starts has been told, and binds only seconds later."""
next(itertools.islice(_walk, random.randrange(len(_PORTS)), None))


_WEIGHTS = (".safetensors", ".bin")
_SMALL_BYTES = 2**26
TOKENIZER_FLAG = "--target-tokenizer"


@dataclass(frozen=True, slots=True)
class PairSettings:
    """Settings of a pair. ``target_flags`` and ``draft_flags`` go to the services unchanged; an
    empty draft means none."""

    target: str = "embedded"
    draft: str = "embedded"
    device: str = "cpu"
    dtype: str = "bfloat16"
    target_flags: Sequence[str] = ()
    draft_flags: Sequence[str] = ()
    orchestrator_flags: Sequence[str] = ()
    gateway_flags: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    store: str = "memory"
    """Store of the orchestrator's sessions; empty for its default."""


@functools.cache
def _claims() -> int:
    """Open the file whose byte N a process locks, until it ends, when it takes port N: a second
    process then takes another."""
    path = Path(tempfile.gettempdir(), f"slipstream-ports-{os.getuid()}")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def free_address() -> str:
    """Return a loopback address whose port is free, and is given to no other process that asks
    here."""
    claims = _claims()
    while True:
        address = ("127.0.0.1", next(_walk))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, address[1])
                probe.bind(address)
            except OSError:
                continue
            return f"127.0.0.1:{address[1]}"


def is_small(model: str) -> bool:
    """Return True if a draft's step reads at most what caches hold, by the bytes of its weights if
    they lie on this machine."""
    path = expanded(model)
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir() if file.suffix in _WEIGHTS) <= _SMALL_BYTES
    if path.is_file():
        return path.stat().st_size <= _SMALL_BYTES
    return model == EMBEDDED or model.startswith(ARITHMETIC)  # and else a hub id


class LocalServices:
    """Use as a context: inside it the orchestrator is healthy, after it no process is left."""

    def __init__(
        self,
        settings: PairSettings,
        *,
        orchestrator: str | None = None,
        verifier: str | None = None,
        draft: str | None = None,
        gateway: str = "",
        timeout: float = START_SECONDS,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Addresses left out are free ones, but without its address there is no gateway. ``report``
        is told what is being waited for."""
        self.settings = settings
        self.orchestrator_address = orchestrator or free_address()
        self.verifier_address = verifier or free_address()
        self.draft_address = (draft or free_address()) if settings.draft else ""
        self.gateway_address = gateway
        self.services: dict[str, Service] = {}
        self.gateway: GatewayProcess | None = None
        self.remarks: list[str] = []
        """Lines for the user about the services that were started."""
        self._timeout = timeout
        self._report = report

    def __enter__(self) -> LocalServices:
        try:
            self.start_verifier()
            if self.draft_address:
                self.start_draft()
            self.start_orchestrator()
            if self.gateway_address:
                self.start_gateway()
            places = [f"{name} at {service.address}" for name, service in self.services.items()]
            self._report(f"waiting for {', '.join(places)}")
            wait_until_healthy(list(self.services.values()), self._timeout, self._report)
            self.remarks = [found for service in self.services.values() if (found := service.remark())]
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_verifier(self) -> Service:
        """Start, or start again, the verifier."""
        settings = self.settings
        flags = [*self._model_flags(settings.target, settings.dtype), *settings.target_flags]
        return self._start("verifier", "verifier_service", self.verifier_address, flags)

    def start_draft(self) -> Service:
        """Start, or start again, the draft."""
        settings = self.settings
        # Its target's threads want the cores too: one more pays where a step reads more than a
        # core's caches hold.
        threads = ["--threads", "1"] if settings.device == "cpu" and is_small(settings.draft) else []
        # A draft that has the target's tokenizer ignores it.
        is_told = settings.target == settings.draft or TOKENIZER_FLAG in settings.draft_flags
        tokenizer = [] if is_told else [TOKENIZER_FLAG, settings.target]
        flags = [*self._model_flags(settings.draft, settings.dtype), *threads, *tokenizer, *settings.draft_flags]
        return self._start("draft", "draft_service", self.draft_address, flags)

    def start_orchestrator(self) -> Service:
        """Start the orchestrator."""
        flags = ["--verifier", self.verifier_address, "--draft", self.draft_address]
        flags += ["--store", self.settings.store] if self.settings.store else []
        return self._start(
            "orchestrator", "orchestrator", self.orchestrator_address, [*flags, *self.settings.orchestrator_flags]
        )

    def start_gateway(self) -> GatewayProcess:
        """Start the gateway. It need not wait for the orchestrator."""
        flags = ["--orchestrator", self.orchestrator_address, *self.settings.gateway_flags]
        gateway = GatewayProcess(self.gateway_address, flags, self.settings.environment)
        self.services[GATEWAY] = self.gateway = gateway
        return gateway

    def stop(self) -> None:
        """Stop them all, the gateway and the orchestrator first, so that running requests and turns
        can drain."""
        held = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for name in (GATEWAY, "orchestrator", "draft", "verifier"):
                if name in self.services:
                    self.services[name].stop()
        finally:
            for number, handler in held.items():
                signal.signal(number, handler)

    def _model_flags(self, model: str, dtype: str) -> list[str]:
        return ["--model", model, "--device", self.settings.device, "--dtype", dtype]

    def _start(self, name: str, module: str, address: str, flags: Sequence[str]) -> Service:
        if name in self.services:
            self.services[name].stop()
        service = Service(name, module, address, flags, self.settings.environment)
        self.services[name] = service
        return service
