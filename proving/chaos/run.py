"""Everything goes wrong, one thing after another, under many sessions at once; every text must be
what it is undisturbed.

Three orchestrator processes behind one port with one store, two verifiers, a draft, proxies before
them, mutual TLS between all. Sessions of two turns and generations, greedy and sampled, by readers
some of which vanish and come back. First each is answered undisturbed; then they are asked again
and again while faults strike. No token may differ, come twice or be missing, and at the end no page
may be held.

  python -m proving.chaos --faults 200
  python -m proving.chaos --faults 20 --report docs/history/chaos.md
"""

from __future__ import annotations

import argparse
import random
import shlex
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from proving.chaos.clock import can_be_set
from proving.chaos.faults import ALL, DEADLINES, FULL_SECONDS, STOPPED_SECONDS, Fault, Scene
from proving.pairs import COMPILED, EMBEDDED, pair_named
from proving.prompts import PromptSource
from proving.results import commit_of_tree
from proving.system import Setup, System
from slipstream.client import Client, PeerError, Reply, Settings
from slipstream.wire.v1 import model_pb2, model_pb2_grpc

_SECOND_MESSAGE = "And what else?"
_QUIET_SECONDS = (0.2, 1.0)
"""Seconds between two faults."""
_SETTLE_SECONDS = 60.0
"""Seconds in which all pages must be released."""


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one session. A ``tokens`` prompt is a generation; a text starts a session of two
    turns."""

    prompt: str | tuple[int, ...]
    settings: Settings

    def run(self, client: Client, rng: random.Random | None, watch: Gaps | None = None) -> list[list[int]]:
        """Return the tokens of each turn. With ``rng`` the reader may vanish and come back."""
        if not isinstance(self.prompt, str):
            return [_read(client, client.generate(self.prompt, self.settings), rng, watch)]
        session = client.create_session(settings=self.settings)
        try:
            return [_read(client, session.send(said), rng, watch) for said in (self.prompt, _SECOND_MESSAGE)]
        finally:
            client.delete_session(session.session_id)


@dataclass(slots=True)
class Gaps:
    """The longest wait of any turn for its next tokens since the last reset, and the number of
    tokens."""

    longest: float = 0.0
    token_count: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def saw(self, seconds: float, token_count: int) -> None:
        """Record one wait, and the tokens after it."""
        with self.lock:
            self.longest = max(self.longest, seconds)
            self.token_count += token_count

    def take(self) -> float:
        """Return the longest gap, and start to measure again."""
        with self.lock:
            longest, self.longest = self.longest, 0.0
            return longest


def _read(client: Client, reply: Reply, rng: random.Random | None, watch: Gaps | None) -> list[int]:
    tokens: list[int] = []
    while True:
        leaves_after = rng.randrange(8, 64) if rng is not None and rng.random() < 0.3 else None
        before = time.monotonic()
        for delta in reply.deltas():
            now = time.monotonic()
            if watch is not None:
                watch.saw(now - before, len(delta.token_ids))
            before = now
            assert delta.token_offset == len(tokens) or not delta.token_ids, "a token twice, or missing"
            tokens += delta.token_ids
            if leaves_after is not None and len(tokens) >= leaves_after and reply.result.finish_reason is None:
                reply.detach()
                break
        else:
            return tokens
        reply = client.watch(reply.result.session_id, reply.result.turn, len(tokens))


@dataclass(slots=True)
class Struck:
    """Results of one kind of fault."""

    count: int = 0
    gaps: list[float] = field(default_factory=list)


class Chaos:
    """One run."""

    def __init__(self, fault_count: int, session_count: int, token_count: int, seed: int, directory: Path) -> None:
        self._fault_count = fault_count
        self._session_count = session_count
        self._rng = random.Random(f"chaos {seed}")
        self._tasks = _tasks(session_count, token_count, seed)
        self._directory = directory
        self._over = threading.Event()
        self._gaps = Gaps()
        self._turns: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.complaints: list[str] = []
        self.struck: dict[str, Struck] = defaultdict(Struck)
        self.turn_count = 0

    @property
    def token_count(self) -> int:
        """Tokens that arrived while faults struck."""
        return self._gaps.token_count

    def run(self, progress: Progress) -> None:
        """Run everything. SlipstreamError if the services cannot be started."""
        pair = pair_named(EMBEDDED, self._directory, "bfloat16", COMPILED)
        setup = Setup(
            pair,
            session_count=self._session_count,
            common_length=256,
            longest_length=2048,
            verifier_count=2,
            proxied=True,
            process_count=3,
            orchestrator_flags=DEADLINES,
            steps_clocks=can_be_set(),
            certified=True,
        )
        bar = progress.add_task("undisturbed", total=len(self._tasks))
        with System(setup) as system:
            with system.client() as client:
                expected = []
                for task in self._tasks:
                    expected.append(task.run(client, None))
                    progress.advance(bar)
            threads = [
                threading.Thread(target=self._session, args=(system, task, texts, random.Random(self._rng.random())))
                for task, texts in zip(self._tasks, expected, strict=True)
            ]
            for thread in threads:
                thread.start()
            try:
                self._strike_all(Scene(system, self._rng, pair.target), progress)
            finally:
                self._over.set()
                for thread in threads:
                    thread.join()
            self._see_pages_come_back(system)

    def _strike_all(self, scene: Scene, progress: Progress) -> None:
        bar = progress.add_task("faults", total=self._fault_count)
        order: list[Fault] = []
        for _ in range(self._fault_count):
            if not order:
                order = self._rng.sample(list(ALL), len(ALL))
            time.sleep(self._rng.uniform(*_QUIET_SECONDS))
            self._gaps.take()
            fault = order.pop()
            fault.strike(scene)
            self._see_everybody_answer(scene)
            struck = self.struck[fault.name]
            struck.count += 1
            struck.gaps.append(self._gaps.take())
            progress.advance(bar)

    def _see_everybody_answer(self, scene: Scene) -> None:
        """Wait until every service answers, so that faults come one after another and each is seen
        to end."""
        for index in range(scene.system.setup.verifier_count):
            scene.system.wait_for(f"verifier {index}")
        scene.system.wait_for("draft")
        scene.system.wait_for("orchestrator")
        deadline = time.monotonic() + _SETTLE_SECONDS
        while len(scene.orchestrators()) < scene.system.setup.process_count and time.monotonic() < deadline:
            time.sleep(0.05)
        before = self._gaps.token_count
        while self._gaps.token_count == before:
            if time.monotonic() > deadline:
                self._complain("no session got a token for a minute")
                return
            time.sleep(0.05)

    def _session(self, system: System, task: Task, expected: list[list[int]], rng: random.Random) -> None:
        with system.client() as client:
            while not self._over.is_set():
                try:
                    got = task.run(client, rng, self._gaps)
                except PeerError as error:
                    self._complain(f"no answer: {error.reason}: {error}")
                    continue
                except Exception as error:  # every error is a complaint
                    self._complain(f"{type(error).__name__}: {error}")
                    continue
                with self._lock:
                    self.turn_count += len(got)
                if got != expected:
                    self._complain(f"{task.prompt!r} was answered otherwise: {got} instead of {expected}")

    def _see_pages_come_back(self, system: System) -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        for name in ("draft", *(f"verifier {index}" for index in range(system.setup.verifier_count))):
            while (load := _load(system, name)).held_page_count and time.monotonic() < deadline:
                time.sleep(0.5)
            if load.held_page_count:  # open sequences hold them, or they leaked: the message tells the two apart
                self._complain(
                    f"{load.held_page_count} pages are held on {name}, where {load.sequence_count} sequences are open and "
                    f"{load.unfinished_count} items are not answered"
                )

    def _complain(self, complaint: str) -> None:
        with self._lock:
            self.complaints.append(complaint)


def _load(system: System, name: str) -> model_pb2.Load:
    with system.connect(name) as channel:
        return model_pb2_grpc.ModelServiceStub(channel).GetLoad(model_pb2.GetLoadRequest(), timeout=10).load


def _tasks(count: int, token_count: int, seed: int) -> list[Task]:
    """Return tasks: greedy and sampled, generations and sessions, alternating. A third has no
    speculation."""
    prompts = PromptSource(seed).draw(4 * count)
    short = [tuple(prompt) for prompt in prompts if 8 <= len(prompt) <= 200]
    tasks = []
    for index in range(count):
        settings = Settings(
            temperature=float(index % 2),
            seed=index,
            max_token_count=token_count,
            ignore_end_tokens=True,
            draft_length=None if index % 3 else 0,
        )
        prompt = f"What does {('len', 'zip', 'map', 'sorted')[index % 4]} do, and number {index}?"
        tasks.append(Task(prompt if index // 2 % 2 else short[index], settings))
    return tasks


_ABOUT = f"""\
Three orchestrator processes behind one port, one store in a file, two verifiers, a draft, proxies before them, mutual TLS
between all; sessions and generations, greedy and sampled, some of whose readers vanish and come back. Each text is compared
with what was said undisturbed; at the end no page may be held. A gap is the longest that any turn waited for its next tokens
while the fault was there or just over. The deadlines: `{" ".join(DEADLINES)}`. Processes are stopped and networks parted for
{STOPPED_SECONDS:g} s; a full disk refuses new turns for {FULL_SECONDS:g} s, and their clients ask again."""

_COLUMNS = ("fault", "struck", "longest gap, median s", "longest gap s")


def rows(chaos: Chaos) -> list[tuple[str, ...]]:
    """Return for each kind of fault its count, and the longest wait of any turn for its next tokens
    meanwhile."""
    return [
        (name, str(struck.count), f"{statistics.median(struck.gaps):.1f}", f"{max(struck.gaps):.1f}")
        for name, struck in sorted(chaos.struck.items())
    ]


def table(chaos: Chaos) -> Table:
    """Return the rows as a table for the terminal."""
    shown = Table()
    for column in _COLUMNS:
        shown.add_column(column, justify="left" if column == "fault" else "right")
    for row in rows(chaos):
        shown.add_row(*row)
    return shown


def markdown(chaos: Chaos, command: str, verdict: str) -> str:
    """Return the rows as a page."""
    lines = ["# Chaos", "", f"`{command}` at {commit_of_tree()}:", "", f"**{verdict}**", ""]
    lines += [_ABOUT, ""]
    lines += [f"| {' | '.join(_COLUMNS)} |", "|---|---:|---:|---:|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows(chaos))]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run chaos. Returns 0 if nothing failed but what was meant to."""
    parser = argparse.ArgumentParser(
        prog="python -m proving.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=20, help="how many faults (default 20)")
    parser.add_argument("--sessions", type=int, default=16, help="sessions at once (default 16)")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of a turn (default 96)")
    parser.add_argument("--seed", type=int, default=0, help="decides prompts and the order of faults (default 0)")
    parser.add_argument("--report", type=Path, help="write the table there as markdown")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    chaos = Chaos(options.faults, options.sessions, options.tokens, options.seed, Path("build/chaos"))
    started = time.monotonic()
    with Progress(console=console) as progress:
        chaos.run(progress)
    seconds = time.monotonic() - started
    console.print(table(chaos))
    for complaint in chaos.complaints[:20]:
        console.print(complaint, style="red", markup=False)
    count = sum(struck.count for struck in chaos.struck.values())
    verdict = (
        f"{count} faults under {options.sessions} sessions: {chaos.turn_count} turns, {chaos.token_count:,} tokens, "
        f"{len(chaos.complaints)} complaints, in {seconds:.0f} s"
    )
    console.print(verdict, style="bold red" if chaos.complaints else "bold green")
    if options.report:
        command = shlex.join(["python", "-m", "proving.chaos", *(arguments if arguments is not None else sys.argv[1:])])
        options.report.write_text(markdown(chaos, command, verdict))
    return 1 if chaos.complaints else 0
