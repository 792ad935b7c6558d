"""A hostile draft and a hostile verifier beside correct ones: every kind of nonsense, and turns
that must not be affected.

Turns run on the orchestrator all the time. One draft or verifier answers each kind of nonsense in
turn, and correctly in between. Others report nonsense about their model from the start. Each turn's
text must be that of plain decoding, unless the ratio test lets the draft change it. A turn beside
nonsense takes at most twice the median of quiet ones plus one second.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
import psutil

from proving.hostile.hostile_peer import HostilePeer, Liar, lies
from proving.hostile.judge import MOST_MEMORY, Judge
from slipstream.agreed import WIRE_VERSION
from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from slipstream.client import Client, Settings
from slipstream.wire.v1 import model_pb2, model_pb2_grpc

_TOKEN_COUNT = 24
_SLOWER, _SECONDS = 2.0, 1.0
"""Bound of a turn beside nonsense: this factor of the quiet median, plus these seconds."""
_PATIENCE_SECONDS = 20.0
"""Longest time that the orchestrator may take before it meets a kind of nonsense."""
_QUIET_TURNS = 12
_RIGHT_ANSWERS = 6
"""Correct answers after which a peer is trusted as before. The first one answers a probe."""

_ORCHESTRATOR_FLAGS = ("--store", "memory", "--draft-deadline-seconds", "0.5")
_DEADLINE = ("--verifier-deadline-seconds", "2")
"""Deadline of a verifier that answers something else and still owes its answer."""


_RATIO = ("draft", "verifier")
"""Roles that answer items one by one, which only the ratio test asks."""
_WITHOUT_DRAFT = ("verifier", "runs")
"""Roles whose turns ask no draft."""


def _settings(index: int, role: str) -> Settings:
    """Return the settings of neighbour ``index`` of a role: sampled, and greedy without the ratio
    test; with log-probabilities and without."""
    return Settings(
        temperature=float(index % 2) or (0.5 if role in _RATIO else 0.0),
        ratio=role in _RATIO,
        seed=index,
        max_token_count=_TOKEN_COUNT,
        ignore_end_tokens=True,
        draft_length=0 if role in _WITHOUT_DRAFT else 3,
        top_logprob_count=2 if index % 4 < 2 else None,
        prompt_logprobs=index % 4 == 0,
    )


@dataclass(frozen=True, slots=True)
class _Turn:
    kind: str
    """Kind of the nonsense beside the turn; empty: none."""
    seconds: float


class HostilePeers:
    """The run of one role: ``role`` is the hostile one, ``draft`` or ``verifier``, ``runs`` for a
    verifier that answers runs with nonsense, or ``hints`` for a draft that sends hints of nonsense.
    Use it as a context."""

    def __init__(self, role: str, verifier: str, draft: str, judge: Judge, *, neighbour_count: int = 2) -> None:
        """``verifier`` and ``draft`` are the addresses of correct services."""
        self.role = role
        self._right = {"verifier": verifier, "draft": draft}
        self._service = "draft" if role in ("draft", "hints") else "verifier"
        self._judge = judge
        self._neighbour_count = neighbour_count
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"hostile {role}", daemon=True)
        self.peer = HostilePeer(role, free_address(), self._right[self._service])
        self.liars: dict[str, Liar] = {}
        self.turns: list[_Turn] = []
        self.most_memory = 0
        self.kind_count = 0
        self._last_kind = ""
        self._change_count = 0
        """Number of changes of the peer's answers."""
        self.orchestrator: Service | None = None
        self._over = threading.Event()
        self._neighbours: list[threading.Thread] = []
        self._expected: dict[int, list[int]] = {}

    def __enter__(self) -> HostilePeers:
        self._thread.start()
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self, kinds: Sequence[str] | None = None) -> None:
        """Answer with each of ``kinds``, or with all kinds."""
        assert self.orchestrator is not None
        with Client(self.orchestrator.address) as client:
            for index in range(self._neighbour_count):
                self._expected[index] = self._turn(client, index, Settings(draft_length=0))
        for index in range(self._neighbour_count):
            self._neighbours.append(threading.Thread(target=self._talk, args=(index,)))
            self._neighbours[-1].start()
        self._wait(lambda: len(self.turns) >= _QUIET_TURNS, "quiet turns")
        for kind in HostilePeer.kinds(self.role) if kinds is None else kinds:
            self._suffer(kind)
            self._judge_memory()
        self._over.set()
        for neighbour in self._neighbours:
            neighbour.join()
        self._judge_all()

    @property
    def quiet_median(self) -> float:
        """Median seconds of a turn beside correct answers."""
        return statistics.median(turn.seconds for turn in self.turns if not turn.kind)

    @property
    def summary(self) -> str:
        """Return one line: what was sent, and what it cost."""
        slowest = max(turn.seconds for turn in self.turns if turn.kind)
        return (
            f"hostile {self.role}: {self.kind_count + len(self.liars)} kinds of nonsense beside {len(self.turns)} turns of "
            f"{self.quiet_median:.2f} s, the slowest {slowest:.2f} s; orchestrator at most {self.most_memory / 2**20:.0f} MiB"
        )

    def _suffer(self, kind: str) -> None:
        """Answer with one kind of nonsense until it has been used, then correctly until an answer
        has been accepted."""
        peer = self.peer
        self._last_kind = kind
        self._change(kind)
        self._wait(lambda: peer.asked[kind] > 0, f"being asked for {kind!r}")
        time.sleep(0.1)
        before = peer.asked[""]
        self._change("")
        self._wait(lambda: peer.asked[""] >= before + _RIGHT_ANSWERS, f"being asked again after {kind!r}")
        self.kind_count += 1

    def _change(self, kind: str) -> None:
        self._change_count += 1
        self.peer.kind = kind

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                self._judge.complain(f"the hostile {self.role} waited in vain for {what}")
                return
            time.sleep(0.005)

    def _talk(self, index: int) -> None:
        assert self.orchestrator is not None
        with Client(self.orchestrator.address, reconnect=_PATIENCE_SECONDS) as client:
            while not self._over.is_set():
                before, started = self._change_count, time.monotonic()
                try:
                    got = self._turn(client, index, Settings())
                except Exception as error:  # every error is a complaint
                    kind = self._kind_since(before)
                    self._judge.complain(f"beside {kind!r} a turn failed: {type(error).__name__}: {str(error)[:300]}")
                    continue
                kind = self._kind_since(before)
                self.turns.append(_Turn(kind, time.monotonic() - started))
                if got != self._expected[index] and not self._may_differ(got):
                    self._judge.complain(f"beside {kind!r} a text was {got} instead of {self._expected[index]}")

    def _may_differ(self, got: list[int]) -> bool:
        """Return whether a text may be another one: under the ratio test it depends on what a draft
        proposes."""
        return self.role == "draft" and len(got) == _TOKEN_COUNT

    def _kind_since(self, change_count: int) -> str:
        """Return the nonsense beside a turn since the given change count."""
        return "" if change_count == self._change_count and not self.peer.kind else self._last_kind

    def _turn(self, client: Client, index: int, over: Settings) -> list[int]:
        session = client.create_session(settings=_settings(index, self.role))
        try:
            reply = session.send("x" * (index + 1), settings=over)
            for _ in reply.deltas():
                pass
            return list(reply.result.token_ids)
        finally:
            client.delete_session(session.session_id)

    def _judge_memory(self) -> None:
        assert self.orchestrator is not None
        memory = psutil.Process(self.orchestrator.process.pid).memory_info().rss
        self.most_memory = max(self.most_memory, memory)

    def _judge_all(self) -> None:
        assert self.orchestrator is not None
        longest = _SLOWER * self.quiet_median + _SECONDS
        for turn in self.turns:
            if turn.kind and turn.seconds > longest:
                self._judge.complain(f"beside {turn.kind!r} a turn took {turn.seconds:.2f} s, more than {longest:.2f}")
        if self.most_memory > MOST_MEMORY:
            self._judge.complain(
                f"the orchestrator had {self.most_memory / 2**20:.0f} MiB beside a hostile {self.role}"
            )
        for kind, liar in self.liars.items():
            if not liar.asked:
                self._judge.complain(f"the {self.role} with {kind!r} was not asked what it hosts")
            if liar.items:
                self._judge.complain(f"the {self.role} with {kind!r} was asked for rounds")
        log = self.orchestrator.log.read_text(errors="replace")
        if "Traceback" in log:
            at = log.index("Traceback")
            self._judge.complain(f"a traceback beside a hostile {self.role}: {log[max(0, at - 300) : at + 1500]}")

    def _start(self) -> None:
        if self.role in self._right:  # the other roles of a service have the same liars
            for kind, answer in lies(_info_of(self._right[self.role])).items():
                self.liars[kind] = Liar(free_address(), answer)
        self._do(self._start_servers())
        right, addresses = self._right, {**self._right}
        hostile = [self.peer.address, *(liar.address for liar in self.liars.values())]
        addresses[self._service] = ",".join([right[self._service], *hostile])
        flags = ["--verifier", addresses["verifier"], "--draft", addresses["draft"], *_ORCHESTRATOR_FLAGS, *_DEADLINE]
        self.orchestrator = Service("orchestrator", "orchestrator", free_address(), flags, {})
        self.orchestrator.wait_until_healthy()

    async def _start_servers(self) -> None:
        await self.peer.start()
        for liar in self.liars.values():
            await liar.start()

    async def _stop_servers(self) -> None:
        await self.peer.stop()
        for liar in self.liars.values():
            await liar.stop()

    def _stop(self) -> None:
        self._over.set()
        for neighbour in self._neighbours:
            neighbour.join()
        if self.orchestrator is not None:
            self.orchestrator.stop()
        self._do(self._stop_servers())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _info_of(address: str) -> model_pb2.ModelInfo:
    with grpc.insecure_channel(address) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        request = model_pb2.GetModelInfoRequest(wire_version=WIRE_VERSION)
        return stub.GetModelInfo(request, timeout=10).model


def run_peers(verifier: str, draft: str, judge: Judge) -> list[str]:
    """Run all roles at once, with every kind. ``verifier`` and ``draft`` are correct services.
    Returns a line for each."""
    lines: list[str] = []

    def play(role: str) -> None:
        try:
            with HostilePeers(role, verifier, draft, judge) as part:
                part.run()
                lines.append(part.summary)
        except Exception as error:
            judge.complain(f"the part of a hostile {role} failed: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=play, args=(role,)) for role in ("draft", "hints", "verifier", "runs")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lines
