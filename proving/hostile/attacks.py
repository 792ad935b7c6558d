"""Attacks by a caller without a token, on one connection, beside a neighbour whose turns must stay
as quick as they are.

One of them alone, against a running server:

  python -m proving.hostile.attacks ATTACK HOST:PORT SECONDS
"""

from __future__ import annotations

import dataclasses
import gzip
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from proving.hostile.http2 import NEWEST, RawConnection, grpc_message, literal
from proving.hostile.judge import MOST_MEMORY, Judge
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.cli.token import token_and_entry
from slipstream.client import Client, Settings

_SERVICE = "/slipstream.v1.OrchestratorService"
_HEALTH = "/grpc.health.v1.Health/Check"
_INFLATED_BYTES = 15 * 2**20
_BOMB_FIELD, _BOMB_REFERENCES = "a" * 3900, 4000
"""A field of 16 MiB in 8 KB: a field that the server stores, and references to it of one byte
each."""

_MOST_STREAMS = 20_000
_RESETS_TOGETHER = 100
_QUIET_TURNS = 15
_QUICK = Settings(max_token_count=100, ignore_end_tokens=True, draft_length=0)


def _compressed(connection: RawConnection) -> None:
    """Send bodies of 15 KB that would become messages of 15 MiB."""
    connection.meet()
    body = grpc_message(gzip.compress(bytes(_INFLATED_BYTES)), compressed=True)
    while True:
        stream = connection.open(f"{_SERVICE}/Generate", ("grpc-encoding", "gzip"))
        connection.say(stream, body)
        connection.outcome(stream)


def _uncompressed(connection: RawConnection) -> None:
    """Send messages of 15 MiB, uncompressed."""
    connection.meet()
    body = grpc_message(bytes(_INFLATED_BYTES))
    while True:
        stream = connection.open(f"{_SERVICE}/Generate")
        connection.say(stream, body)
        connection.outcome(stream)


def _headers(connection: RawConnection) -> None:
    """Send header fields by reference, from a client that neither acknowledges settings nor
    reads."""
    connection.open(_HEALTH, block=literal("x", _BOMB_FIELD, kept=True))
    connection.open_many(_HEALTH, 3000, NEWEST * _BOMB_REFERENCES)
    connection.seconds_until_closed()


def _chat_headers(connection: RawConnection) -> None:
    """Send header fields by reference, in calls that wait for their first message."""
    connection.open(f"{_SERVICE}/Chat", block=literal("x", _BOMB_FIELD, kept=True))
    connection.open_many(f"{_SERVICE}/Chat", 3000, NEWEST * 3)
    connection.seconds_until_closed()


def _streams(connection: RawConnection) -> None:
    """Make more calls at once than a client needs."""
    connection.meet()
    connection.open_many(_HEALTH, _MOST_STREAMS)
    while True:
        connection.read()


def _resets(connection: RawConnection) -> None:
    """Make calls with a message, and end each at once (rapid reset)."""
    connection.meet()
    while True:
        for _ in range(_RESETS_TOGETHER):
            stream = connection.open(f"{_SERVICE}/GetServerInfo")
            connection.say(stream, grpc_message(b""))
            connection.reset(stream)
        connection.skip()


ATTACKS: dict[str, Callable[[RawConnection], None]] = {
    "compressed": _compressed,
    "uncompressed": _uncompressed,
    "headers": _headers,
    "chat-headers": _chat_headers,
    "streams": _streams,
    "resets": _resets,
}


def attack(name: str, address: str, seconds: float) -> int:
    """Attack for ``seconds``, on a new connection whenever the server ends one. Returns the number
    of connections."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        count += 1
        # However the connection ends, by its socket or by its own time limit, the next one begins.
        with suppress(OSError, EOFError), RawConnection(address, max(0.1, end - time.monotonic())) as connection:
            cutting = threading.Timer(max(0.1, end - time.monotonic()), connection.cut)
            cutting.start()
            try:
                ATTACKS[name](connection)
            finally:
                cutting.cancel()
                cutting.join()
    return count


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The effects of an attack on the neighbour and on the orchestrator."""

    name: str
    turns: tuple[float, ...]
    """Seconds of each of the neighbour's turns."""
    most_bytes: int

    def __str__(self) -> str:
        median, worst = statistics.median(self.turns), max(self.turns)
        what = f"{len(self.turns)} turns beside, {median:.2f} s in the median, {worst:.2f} s at most"
        return f"{self.name}: {what}; orchestrator at most {self.most_bytes / 2**20:.0f} MiB"


def run_attacks(judge: Judge, seconds: float, *attacks: str, is_quick: bool = True) -> list[str]:
    """Run attacks on an orchestrator started here, all of them if none is named. Returns a line for
    each, and reports complaints to the judge. ``is_quick`` False means a busy machine, on which
    turns may take any time."""
    with _guarded() as (local, token), Client(local.orchestrator_address, token=token) as neighbour:
        orchestrator = local.services["orchestrator"]
        quiet = [_turn(neighbour) for _ in range(_QUIET_TURNS)]
        most_seconds = 2 * statistics.median(quiet) + 1
        lines = [f"quiet: {statistics.median(quiet):.2f} s in the median, {max(quiet):.2f} s at most"]
        for name in attacks or ATTACKS:
            outcome = _beside(name, local, neighbour, seconds, judge)
            lines.append(str(outcome))
            if is_quick and max(outcome.turns) > most_seconds:
                judge.complain(f"{outcome}: a turn may take {most_seconds:.2f} s")
            if outcome.most_bytes > MOST_MEMORY:
                judge.complain(f"{outcome}: it may have {MOST_MEMORY / 2**20:.0f} MiB")
        _, found, trace = orchestrator.log.read_text(errors="replace").partition("Traceback")
        if found:
            judge.complain(f"the orchestrator logged a traceback: {trace[:2000]}")
    return lines


def _beside(name: str, local: LocalServices, neighbour: Client, seconds: float, judge: Judge) -> Outcome:
    process = psutil.Process(local.services["orchestrator"].process.pid)
    command = (sys.executable, "-P", "-m", "proving.hostile.attacks", name, local.orchestrator_address, str(seconds))
    turns: list[float] = []
    most = 0
    with subprocess.Popen(command) as attacker:
        while attacker.poll() is None or not turns:
            most = max(most, process.memory_info().rss)
            started = time.monotonic()
            try:
                turns.append(_turn(neighbour))
            except Exception as error:  # the neighbour must meet no error at all
                turns.append(time.monotonic() - started)
                judge.complain(f"{name}: a neighbour's turn failed: {type(error).__name__}: {error}")
            most = max(most, process.memory_info().rss)
    return Outcome(name, tuple(turns), most)


def _turn(client: Client) -> float:
    started = time.monotonic()
    client.generate([10, 20, 30], _QUICK).wait()
    return time.monotonic() - started


@contextmanager
def _guarded() -> Iterator[tuple[LocalServices, str]]:
    """Run a pair whose orchestrator requires tokens, and yield it with a token."""
    token, entry = token_and_entry("neighbour", 1)
    with tempfile.TemporaryDirectory(prefix="slipstream-attacks-") as folder:
        access = Path(folder) / "access.toml"
        access.write_text(entry)
        memory = ("--kv-memory-mib", "1")
        settings = PairSettings(
            target="arithmetic:ends=0",
            draft="arithmetic:ends=0&agreement=0.8",
            target_flags=memory,
            draft_flags=memory,
            orchestrator_flags=("--access", str(access)),
        )
        with LocalServices(settings) as local:
            yield local, token


if __name__ == "__main__":
    attack(sys.argv[1], sys.argv[2], float(sys.argv[3]))
