"""Hostile messages to every method of every service, beside sessions that must not notice.

Messages come from the services' own descriptors (`fields`), from callers that read, cancel, run out
of time, never read or vanish. Every answer's status must say what the caller did wrong, or that it
helps to ask again. Each item must be answered. The services stay SERVING, their memory stays
bounded, and the bystanders' texts are as they are undisturbed. At the end no page may be held.

Then a caller without a token attacks an orchestrator that asks for one (`attacks`). After that a
draft and a verifier answer with nonsense (`peers`).

  python -m proving.hostile --messages 2000
  python -m proving.hostile --messages 100000 --report docs/history/hostile.md
  python -m proving.hostile --messages 3000 --pair embedded
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
import psutil
from google.protobuf.descriptor import ServiceDescriptor
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from proving.hostile.attacks import run_attacks
from proving.hostile.bystanders import Bystanders
from proving.hostile.callers import Caller
from proving.hostile.judge import Judge
from proving.hostile.peers import run_peers
from proving.hostile.requests import DRAFT, MODEL, ORCHESTRATOR, SERVICES, VERIFIER, Belongings
from proving.hostile.structures import StructureAttack
from proving.results import commit_of_tree
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client
from slipstream.wire.v1 import model_pb2, model_pb2_grpc

_PAPER = "arithmetic:ends=0&context=256"
_MODEL_FLAGS = ("--kv-memory-mib", "1", "--peer-grace-seconds", "2", "--max-lease-seconds", "20")
_CALLERS = 6
"""Number of callers of each service."""
_WARM = 0.1
"""Share of the messages after which memory is first measured."""
_LOOK_SECONDS = 0.5
_SILENT_SECONDS = 20.0
"""Longest time of a health answer on a busy machine."""
_SETTLE_SECONDS = 60.0
MOST_GROWTH = 200 * 2**20
"""Most bytes that a process may grow by after it is warm."""


class Hostile:
    """One run. The same seed sends the same messages, except for names that the services choose."""

    def __init__(
        self,
        message_count: int,
        seed: int,
        *,
        pair: str = "paper",
        bystander_count: int = 4,
        services: Sequence[ServiceDescriptor] = SERVICES,
        peers: bool = True,
    ) -> None:
        """Send ``message_count`` messages to each of the ``services``. With ``peers``, services
        that answer with nonsense follow."""
        self._peers = peers
        self.lines: list[str] = []
        """Lines of the report from the parts after the flood."""
        self._message_count = message_count
        self._seed = seed
        self._pair = pair
        self._bystander_count = bystander_count
        self._services = services
        self.judge = Judge()
        self.memory: dict[str, tuple[int, int, int]] = {}
        """Memory of each process in bytes: when warm, the most since then, and once all sessions
        are deleted."""
        self.bystander_turn_count = 0

    def run(self, progress: Progress) -> None:
        """Run everything. SlipstreamError if the services cannot be started."""
        with (
            tempfile.TemporaryDirectory(prefix="slipstream-hostile-") as directory,
            LocalServices(self._settings(f"{directory}/sessions.db")) as local,
        ):
            self._run_on(local, progress)

    def _settings(self, store: str) -> PairSettings:
        if self._pair == "embedded":
            return PairSettings(target_flags=_MODEL_FLAGS[2:], draft_flags=_MODEL_FLAGS[2:], store=store)
        return PairSettings(
            target=_PAPER,
            draft=f"{_PAPER}&agreement=0.8",
            target_flags=_MODEL_FLAGS,
            draft_flags=_MODEL_FLAGS,
            orchestrator_flags=("--max-session-count", "10000"),
            store=store,
        )

    def _run_on(self, local: LocalServices, progress: Progress) -> None:
        bar = progress.add_task("hostile messages", total=self._message_count * len(self._services))
        bystanders = Bystanders(local.orchestrator_address, self._bystander_count, self.judge, self._seed)
        with bystanders, _Watch(local, self.judge) as watch:
            asyncio.run(self._flood(local, bystanders.kept, _WARM, progress, bar))
            watch.warm()
            asyncio.run(self._flood(local, bystanders.kept, 1.0, progress, bar))
        self.bystander_turn_count = bystanders.turn_count
        _delete_all(local.orchestrator_address)
        if self._peers and self._pair == "paper":
            self.lines += run_peers(local.verifier_address, local.draft_address, self.judge)
        self.memory = watch.memory()
        for name, (before, most, _) in self.memory.items():
            if most - before > MOST_GROWTH:
                self.judge.complain(f"the {name} grew from {before / 2**20:.0f} to {most / 2**20:.0f} MiB")
        for name, address in (("verifier", local.verifier_address), ("draft", local.draft_address)):
            held = _held_pages(address)
            if held:
                self.judge.complain(f"{held} pages are held on the {name}")

    async def _flood(
        self, local: LocalServices, others: Sequence[str], part: float, progress: Progress, bar: TaskID
    ) -> None:
        addresses: Mapping[str, Sequence[str]] = {
            ORCHESTRATOR.name: [local.orchestrator_address],
            MODEL.name: [local.verifier_address, local.draft_address],
            VERIFIER.name: [local.verifier_address],
            DRAFT.name: [local.draft_address],
        }
        callers = []
        for service in self._services:
            rng = random.Random(f"hostile {self._seed} {service.name} {part}")
            belongings = Belongings(others=tuple(others))

            def budget(count: int, service: ServiceDescriptor = service) -> bool:
                if self.judge.messages[service.name] >= self._message_count * part:
                    return False
                progress.advance(bar, count)
                return True

            for index in range(_CALLERS):
                address = addresses[service.name][index % len(addresses[service.name])]
                own = random.Random(rng.random())
                callers.append(Caller(address, service, own, belongings, self.judge, budget))
        await asyncio.gather(*(caller.run() for caller in callers))


class _Watch:
    """Checks the services' health and memory within a context."""

    def __init__(self, local: LocalServices, judge: Judge) -> None:
        self._services = local.services
        self._judge = judge
        self._processes = {name: psutil.Process(each.process.pid) for name, each in local.services.items()}
        self._warm: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def warm(self) -> None:
        """Start to count memory."""
        self._warm = self._now()
        self._most = dict(self._warm)

    def memory(self) -> dict[str, tuple[int, int, int]]:
        """Return the memory when warm, the most since then, and the current one."""
        now = self._now()
        return {name: (before, max(self._most[name], now[name]), now[name]) for name, before in self._warm.items()}

    def _now(self) -> dict[str, int]:
        return {name: process.memory_info().rss for name, process in self._processes.items() if process.is_running()}

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            for name, count in self._now().items():
                if name in self._most:
                    self._most[name] = max(self._most[name], count)
            for name, service in self._services.items():
                try:
                    service.wait_until_healthy(_SILENT_SECONDS)
                except Exception as error:  # it has ended, or says nothing
                    self._judge.complain(f"the {name} is not SERVING: {error}")
                    return


def _delete_all(address: str) -> None:
    with Client(address) as client:
        for session in list(client.list_sessions()):
            client.delete_session(session.session_id)


def _held_pages(address: str) -> int:
    deadline = time.monotonic() + _SETTLE_SECONDS
    with grpc.insecure_channel(address) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        while True:
            held = int(stub.GetLoad(model_pb2.GetLoadRequest(), timeout=10).load.held_page_count)
            if not held or time.monotonic() > deadline:
                return held
            time.sleep(0.5)


_COLUMNS = ("service", "status", "reason", "answers")


def rows(judge: Judge) -> list[tuple[str, ...]]:
    """Return how often each service answered with each status."""
    return [(*key, f"{count:,}") for key, count in sorted(judge.statuses.items(), key=lambda each: each[0])]


def markdown(hostile: Hostile, command: str, verdict: str) -> str:
    """Return the outcome as a page."""
    lines = ["# Hostile messages", "", f"`{command}` at {commit_of_tree()}:", "", f"**{verdict}**", ""]
    lines += ["| process | MiB when warm | at most | at the end |", "|---|---:|---:|---:|"]
    for name, sizes in hostile.memory.items():
        lines.append(f"| {name} | {' | '.join(f'{size / 2**20:.0f}' for size in sizes)} |")
    lines += ["", *hostile.lines] if hostile.lines else []
    lines += ["", f"| {' | '.join(_COLUMNS)} |", "|---|---|---|---:|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows(hostile.judge))]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the test. Returns 0 if nothing failed."""
    parser = argparse.ArgumentParser(
        prog="python -m proving.hostile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2000, help="messages to each service (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="decides what is sent (default 0)")
    parser.add_argument("--pair", choices=("paper", "embedded"), default="paper", help="what is served (default paper)")
    parser.add_argument("--bystanders", type=int, default=4, help="sessions that must not notice (default 4)")
    parser.add_argument(
        "--without-peers", action="store_true", help="leave out the draft and the verifier that answer with nonsense"
    )
    parser.add_argument(
        "--structure-seconds", type=float, default=20, help="for how long hostile structures come; 0: none (default 20)"
    )
    parser.add_argument(
        "--attack-seconds",
        type=float,
        default=8,
        help="for each attack of a caller without a token; 0: none (default 8)",
    )
    parser.add_argument("--report", type=Path, help="write the outcome there as markdown")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    hostile = Hostile(
        options.messages,
        options.seed,
        pair=options.pair,
        bystander_count=options.bystanders,
        peers=not options.without_peers,
    )
    started = time.monotonic()
    with Progress(console=console) as progress:
        hostile.run(progress)
    if options.structure_seconds:
        attack = StructureAttack(hostile.judge, options.structure_seconds)
        attack.run()
        console.print(attack, markup=False)
    attacks = run_attacks(hostile.judge, options.attack_seconds) if options.attack_seconds else []
    for line in attacks:
        console.print(line, markup=False)
    seconds = time.monotonic() - started
    shown = Table(*_COLUMNS)
    for row in rows(hostile.judge):
        shown.add_row(*row)
    console.print(shown)
    for name, sizes in hostile.memory.items():
        console.print(name, *(f"{size / 2**20:.0f}" for size in sizes), "MiB when warm, at most, at the end")
    for line in hostile.lines:
        console.print(line)
    for complaint in hostile.judge.complaints[:20]:
        console.print(complaint[:600], style="red", markup=False)
    sent = ", ".join(f"{name} {count:,}" for name, count in hostile.judge.messages.items())
    verdict = (
        f"{sent}; {hostile.bystander_turn_count:,} turns beside them; "
        f"{len(hostile.judge.complaints)} complaints, in {seconds:.0f} s"
    )
    console.print(verdict, style="bold red" if hostile.judge.complaints else "bold green")
    if options.report:
        command = shlex.join(
            ["python", "-m", "proving.hostile", *(arguments if arguments is not None else sys.argv[1:])]
        )
        page = markdown(hostile, command, verdict)
        if attacks:
            page += "\n".join(["", "## Callers without a token", "", *(f"- {line}" for line in attacks), ""])
        options.report.write_text(page)
    return 1 if hostile.judge.complaints else 0
