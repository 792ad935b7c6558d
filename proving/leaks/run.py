"""Check that nothing stays of abandoned turns, and that memory is flat under many sessions.

Turns are abandoned in the middle in every possible way (`leaving`). Then no page may be held, and
descriptors, sockets, threads and tasks are as many as when the processes were warm. A soak keeps
sessions talking and looks at memory.

  python -m proving.leaks --cancels 1000
  python -m proving.leaks --soak-seconds 600 --sessions 64
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from rich.console import Console
from rich.progress import Progress, TaskID

from proving.leaks.census import Census, Count
from proving.leaks.leaving import WAYS, Scene
from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import AsyncClient, PeerError
from slipstream.reasons import Reason

_AT_ONCE = 8
_WARM_CANCELS = 64
"""Abandoned turns before the first count."""
_SETTLE_SECONDS = 60.0
_LOOK_SECONDS = 10.0
_CONNECTIONS = 8
_MOST_TURNS = 6
MOST_SLOPE = 0.5
"""Most MiB a minute by which a process may grow in the last half of a soak."""


@dataclass(slots=True)
class Outcome:
    """Results of one run."""

    complaints: list[str] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    """Number of turns by the way they were abandoned."""
    turn_count: int = 0
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """Memory of each process: pairs of seconds and bytes."""

    def slopes(self) -> dict[str, float]:
        """MiB a minute over the last half, by process."""
        return {name: _slope(samples[len(samples) // 2 :]) for name, samples in self.memory.items()}


@contextmanager
def served() -> Iterator[tuple[LocalServices, Census]]:
    """Run a pair with its store in a file, and yield it with its census. SlipstreamError if it
    cannot be started."""
    metrics = {name: free_address() for name in ("orchestrator", "verifier", "draft")}
    flags = {name: ("--metrics-address", address) for name, address in metrics.items()}
    model = ("--kv-memory-mib", "1", "--peer-grace-seconds", "1")
    directory = tempfile.TemporaryDirectory(prefix="slipstream-leaks-")
    pair = PairSettings(
        target="arithmetic:ends=0&context=1024",
        draft="arithmetic:ends=0&context=1024&agreement=0.8",
        target_flags=(*model, *flags["verifier"]),
        draft_flags=(*model, *flags["draft"]),
        orchestrator_flags=flags["orchestrator"],
        store=str(Path(directory.name) / "sessions.db"),
    )
    with directory, LocalServices(pair) as local:
        yield local, Census(local, metrics)


def leave_many(local: LocalServices, census: Census, count: int, seed: int, progress: Progress) -> Outcome:
    """Abandon ``count`` turns, and return what stays."""
    outcome = Outcome()
    bar = progress.add_task("turns left", total=count)
    asyncio.run(_leave(local, _WARM_CANCELS, random.Random(f"warm {seed}"), Outcome(), lambda: None))
    warm = _settled(census, outcome)
    before = census.memory()
    asyncio.run(_leave(local, count, random.Random(f"leaks {seed}"), outcome, lambda: progress.advance(bar)))
    gc.collect()  # grpc's calls that were left are circles here, and keep the connection for which a process would be blamed
    for name, more in census.back_at(warm, _SETTLE_SECONDS).items():
        outcome.complaints.append(f"of the {name} there are left: {more}")
    after = census.memory()
    outcome.memory = {name: [(0.0, before[name]), (1.0, after[name])] for name in before}
    return outcome


def _settled(census: Census, outcome: Outcome) -> dict[str, Count]:
    """Wait until nothing happens and nothing is held."""
    settled = census.settled(_SETTLE_SECONDS)
    for name, left in settled.items():
        if left.pages or left.sequences:
            outcome.complaints.append(f"the {name} holds {left.pages} pages of {left.sequences} sequences")
    return settled


async def _leave(
    local: LocalServices, count: int, rng: random.Random, outcome: Outcome, done: Callable[[], None]
) -> None:
    """Abandon turns, several at once, and delete the remaining sessions."""
    ways = deque(rng.choice(WAYS) for _ in range(count))
    async with AsyncClient(local.orchestrator_address) as client:

        async def caller(scene: Scene) -> None:
            while ways:
                way = ways.popleft()
                try:
                    await way(scene)
                except (PeerError, grpc.aio.AioRpcError) as error:
                    outcome.complaints.append(f"{way.__name__}: {error}")
                outcome.left[way.__name__] += 1
                done()

        await asyncio.gather(*(caller(Scene(local, client, random.Random(rng.random()))) for _ in range(_AT_ONCE)))
        await _delete_all(client)


async def _delete_all(client: AsyncClient) -> None:
    for session in [each async for each in client.list_sessions()]:
        await client.delete_session(session.session_id)


def soak(
    local: LocalServices, census: Census, seconds: float, session_count: int, seed: int, progress: Progress
) -> Outcome:
    """Let ``session_count`` sessions talk for ``seconds``."""
    outcome = Outcome()
    bar = progress.add_task("soak", total=seconds)
    asyncio.run(_soak(local, census, seconds, session_count, random.Random(f"soak {seed}"), outcome, progress, bar))
    _settled(census, outcome)
    for name, slope in outcome.slopes().items():
        if slope > MOST_SLOPE:
            outcome.complaints.append(f"the {name} grows by {slope:.2f} MiB a minute")
    return outcome


async def _soak(
    local: LocalServices,
    census: Census,
    seconds: float,
    session_count: int,
    rng: random.Random,
    outcome: Outcome,
    progress: Progress,
    bar: TaskID,
) -> None:
    begun = time.monotonic()
    over = asyncio.Event()

    async def look() -> None:
        while not over.is_set():
            now = time.monotonic() - begun
            for name, byte_count in census.memory().items():
                outcome.memory.setdefault(name, []).append((now, byte_count))
            progress.update(bar, completed=now)
            if now >= seconds:
                over.set()
            await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, seconds - now)))

    async def talk(scene: Scene) -> None:
        while not over.is_set():
            try:
                count = await _session(scene, over)
                outcome.turn_count += count
            except PeerError as error:
                outcome.complaints.append(f"a session failed: {error.reason}: {error}")

    clients = [AsyncClient(local.orchestrator_address) for _ in range(_CONNECTIONS)]
    scenes = [
        Scene(local, clients[index % _CONNECTIONS], random.Random(rng.random())) for index in range(session_count)
    ]
    await asyncio.gather(look(), *map(talk, scenes))
    await _delete_all(clients[0])
    for client in clients:
        await client.close()


async def _session(scene: Scene, over: asyncio.Event) -> int:
    """Run a session of a few turns and delete it. Returns its number of turns."""
    session = await scene.client.create_session(settings=scene.settings())
    count = 0
    try:
        for _ in range(scene.rng.randrange(1, _MOST_TURNS)):
            if over.is_set():
                break
            try:
                await (await session.send(scene.prompt(), scene.settings())).wait()
            except PeerError as error:
                if error.reason != Reason.PROMPT_TOO_LONG:
                    raise
                break
            count += 1
    finally:
        await session.delete()
    return count


def _slope(samples: Sequence[tuple[float, int]]) -> float:
    """Return MiB a minute, by least squares."""
    if len(samples) < 2:
        return 0.0
    slope, _ = statistics.linear_regression(
        [moment / 60 for moment, _ in samples], [byte_count / 2**20 for _, byte_count in samples]
    )
    return slope


def _report(outcome: Outcome, console: Console) -> None:
    if outcome.left:
        console.print("left:", ", ".join(f"{name} {count}" for name, count in sorted(outcome.left.items())))
    slopes = outcome.slopes()
    for name, samples in outcome.memory.items():
        sizes = [byte_count / 2**20 for _, byte_count in samples]
        half = f", {slopes[name]:+.2f} MiB a minute in the last half" if len(samples) > 2 else ""
        console.print(f"{name}: {sizes[0]:.1f} MiB first, {max(sizes):.1f} at most, {sizes[-1]:.1f} last{half}")
    for complaint in outcome.complaints[:20]:
        console.print(complaint, style="red", markup=False)


def main(arguments: list[str] | None = None) -> int:
    """Run the test. Returns 0 if nothing stays and nothing grows."""
    parser = argparse.ArgumentParser(
        prog="python -m proving.leaks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cancels", type=int, default=0, help="turns to leave (default 0: none)")
    parser.add_argument("--soak-seconds", type=float, default=0.0, help="how long to soak (default 0: not at all)")
    parser.add_argument("--sessions", type=int, default=64, help="sessions of a soak (default 64)")
    parser.add_argument("--seed", type=int, default=0, help="decides what is asked and how it is left (default 0)")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    outcomes: list[Outcome] = []
    started = time.monotonic()
    with Progress(console=console) as progress, served() as (local, census):
        if options.cancels:
            outcomes.append(leave_many(local, census, options.cancels, options.seed, progress))
        if options.soak_seconds:
            outcomes.append(soak(local, census, options.soak_seconds, options.sessions, options.seed, progress))
    for outcome in outcomes:
        _report(outcome, console)
    complaint_count = sum(len(outcome.complaints) for outcome in outcomes)
    verdict = (
        f"{sum(outcome.left.total() for outcome in outcomes):,} turns left, "
        f"{sum(outcome.turn_count for outcome in outcomes):,} turns soaked, {complaint_count} complaints, "
        f"in {time.monotonic() - started:.0f} s"
    )
    console.print(verdict, style="bold red" if complaint_count else "bold green")
    return 1 if complaint_count else 0
