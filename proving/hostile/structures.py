"""Structures that take minutes and gigabytes to compile, from one principal, beside another
principal's turns.

The neighbour's turns, with and without new structures, are first measured without the attack.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from proving.hostile.judge import MOST_MEMORY, OUR_FAULT, Judge
from slipstream.bearer_tokens import make_token
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, PeerError, Settings, Structure
from slipstream.errors import Code

_MOST_FACTOR, _MOST_MORE_SECONDS = 2.0, 1.0
"""Bound of a neighbour's turn: this factor of its quiet median, plus these seconds."""

_QUIET_TURNS = 8
"""Measured turns of each kind, after one that is not measured."""

_CALLERS = 4
_LEAVE_SECONDS = 0.7
_ANSWER_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_TOKEN_COUNT = 24
_HALF_A_PAIR = '"\\ud800"'


def hostile_structures() -> Iterator[Structure]:
    """Yield different hostile structures, because a refused one is remembered."""
    for n in itertools.count():
        yield Structure(json_schema=_schema(type="integer", multipleOf=99_991 + n, minimum=0, maximum=10**9))
        yield Structure(
            json_schema=_schema(allOf=[{"type": "integer", "multipleOf": each} for each in (4_999, 4_801 + n)])
        )
        yield Structure(json_schema=_schema(anyOf=[_object(f"{n} {index}") for index in range(400)]))
        yield Structure(json_schema=_schema(properties={f"p{n}-{index}": {"type": "string"} for index in range(2000)}))
        yield Structure(json_schema=_schema(type="string", maxLength=60_000 + n))
        yield Structure(regex=f"(([a-z]{{1,100}}b?){{1,100}}c?){{1,{100 + n}}}")
        yield Structure(grammar=f'start: e\ne: e e | e e e | e e e e | "a" | "aa" | "b{n}" |\n')
        yield Structure(json_schema=f'{{"pattern": {_HALF_A_PAIR}, "title": "{n}"}}')
        yield Structure(json_schema=f'{{"patternProperties": {{{_HALF_A_PAIR}: {{}}}}, "title": "{n}"}}')
        yield Structure(choices=["a" * 60_000 + str(n)])


def _schema(**keywords: object) -> str:
    return json.dumps(keywords)


def _object(name: str) -> dict[str, object]:
    return {"properties": {name: {"type": "integer"}}, "required": [name]}


@dataclass(slots=True)
class StructureAttack:
    """One run, on its own pair."""

    judge: Judge
    seconds: float
    is_timed: bool = True
    """True if a neighbour's slow turn is a complaint. On a machine with much other work its time
    says nothing."""
    statuses: Counter[str] = field(default_factory=Counter)
    quiet: dict[str, float] = field(default_factory=dict)
    """Median seconds of the neighbour's turns by kind, before the attack."""
    slowest: dict[str, float] = field(default_factory=dict)
    """Longest turn of each kind beside the attack, in seconds."""
    most_memory: int = 0
    """Most bytes of the orchestrator."""

    def run(self) -> None:
        """Run the attack. SlipstreamError if the services cannot be started."""
        with tempfile.TemporaryDirectory(prefix="slipstream-hostile-") as directory:
            tokens = _access_file(Path(directory) / "access.toml", "mallory", "alice")
            flags = ("--access", f"{directory}/access.toml", "--drain-seconds", "1")
            paper = "arithmetic:ends=0&context=256"
            settings = PairSettings(paper, f"{paper}&agreement=0.8", orchestrator_flags=flags)
            with LocalServices(settings) as local:
                self._run_on(local, tokens)
                for name, service in local.services.items():
                    if "Traceback" in service.log.read_text(errors="replace"):
                        self.judge.complain(f"the {name} logged a traceback under hostile structures")

    def _run_on(self, local: LocalServices, tokens: dict[str, str]) -> None:
        over = threading.Event()
        structures, lock = hostile_structures(), threading.Lock()

        def attack(client: Client) -> None:
            for leaves in itertools.cycle((False, False, True)):
                if over.is_set():
                    return
                with lock:
                    structure = next(structures)
                self._ask(client, structure, _LEAVE_SECONDS if leaves else _ANSWER_SECONDS, over)

        callers = [Client(local.orchestrator_address, token=tokens["mallory"], reconnect=0) for _ in range(_CALLERS)]
        threads = [threading.Thread(target=attack, args=(each,)) for each in callers]
        threads.append(threading.Thread(target=self._look, args=(local, over)))
        with Client(local.orchestrator_address, token=tokens["alice"]) as client:
            neighbour = _Neighbour(client)
            neighbour.turns(1)
            self.quiet = {kind: statistics.median(times) for kind, times in neighbour.turns(_QUIET_TURNS).items()}
            for thread in threads:
                thread.start()
            try:
                ends = time.monotonic() + self.seconds
                while time.monotonic() < ends:
                    for kind, (seconds,) in neighbour.turns(1).items():
                        self.slowest[kind] = max(self.slowest.get(kind, 0), seconds)
            finally:
                over.set()
                for each in callers:
                    each.close()  # which ends its call
                for thread in threads:
                    thread.join()
        self._judge()

    def _judge(self) -> None:
        for kind, slowest in self.slowest.items():
            most = self.quiet[kind] * _MOST_FACTOR + _MOST_MORE_SECONDS
            if self.is_timed and slowest > most:
                self.judge.complain(f"a {kind} turn took {slowest:.2f} s beside hostile structures: at most {most:.2f}")
        if self.most_memory > MOST_MEMORY:
            self.judge.complain(f"the orchestrator took {self.most_memory / 2**20:.0f} MiB under hostile structures")

    def _ask(self, client: Client, structure: Structure, seconds: float, over: threading.Event) -> None:
        settings = Settings(structure=structure, max_token_count=_TOKEN_COUNT)
        try:
            for _ in client.generate("hello", settings, timeout=seconds).deltas():
                pass
        except (PeerError, ValueError) as error:
            if over.is_set():
                return
            if isinstance(error, ValueError):
                raise
            self.statuses[f"{error.code.name} {error.reason}"] += 1
            has_left = error.code in (Code.DEADLINE_EXCEEDED, Code.CANCELLED)
            if error.code in OUR_FAULT or (has_left and seconds == _ANSWER_SECONDS):
                self.judge.complain(f"a hostile structure was answered {error.code.name} {error.reason}: {error}")
        else:
            self.statuses["OK"] += 1

    def _look(self, local: LocalServices, over: threading.Event) -> None:
        process = psutil.Process(local.services["orchestrator"].process.pid)
        while not over.wait(_LOOK_SECONDS):
            self.most_memory = max(self.most_memory, process.memory_info().rss)

    def __str__(self) -> str:
        turns = ", ".join(
            f"{kind} {seconds:.2f} s quiet, at most {self.slowest.get(kind, 0):.2f} s"
            for kind, seconds in self.quiet.items()
        )
        return f"structures: {turns}; orchestrator at most {self.most_memory / 2**20:.0f} MiB; {dict(self.statuses)}"


class _Neighbour:
    """The turns of a second principal. Their texts must not change."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._count = 0

    def turns(self, count: int) -> dict[str, list[float]]:
        """Seconds that turns of each kind took."""
        times: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(count):
            self._count += 1
            choice = f"number {self._count}"
            for kind, structure in (("plain", None), ("structured", Structure(choices=[choice]))):
                settings = Settings(structure=structure, max_token_count=_TOKEN_COUNT, seed=1)
                began = time.monotonic()
                reply = self._client.generate("hello", settings, timeout=_ANSWER_SECONDS)
                for _ in reply.deltas():
                    pass
                times[kind].append(time.monotonic() - began)
                if structure is not None and reply.result.text != choice:
                    raise AssertionError(f"the neighbour was told {reply.result.text!r} instead of {choice!r}")
        return times


def _access_file(path: Path, *names: str) -> dict[str, str]:
    """Write the access file, and return the tokens by name."""
    tokens, lines = {}, []
    for name in names:
        tokens[name], kept = make_token()
        shown = f'{{ id = "{kept.id}", salt = "{kept.salt}", sha256 = "{kept.sha256}" }}'
        lines += ["[[principals]]", f'name = "{name}"', f"tokens = [{shown}]"]
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return tokens
