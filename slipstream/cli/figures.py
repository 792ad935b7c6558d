"""Figures of ``slipstream top``: an orchestrator from one look to the next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.cli.counts import Counts, ratio, summed
from slipstream.rpc.wire import seconds
from slipstream.v1 import orchestrator_pb2, status_pb2

HISTORY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the orchestrator."""

    status: status_pb2.ProcessStatus
    total: Counts
    rates: Counts
    """A second, since the last look."""

    @property
    def uptime(self) -> float:
        """Seconds since it began."""
        return seconds(self.status.uptime)


@dataclass(frozen=True, slots=True)
class Peer:
    """A service that the orchestrator asks."""

    role: str
    address: str
    reachable_from: int
    """Number of processes that reach the peer."""
    process_count: int
    """Number of all processes."""
    load: status_pb2.PeerLoad | None
    steps_a_second: float | None


@dataclass(frozen=True, slots=True)
class Turn:
    """One that runs."""

    session_id: str
    number: int
    elapsed: float
    token_count: int
    acceptance: float | None

    @classmethod
    def of(cls, message: status_pb2.RunningTurn) -> Turn:
        """From the wire."""
        acceptance = ratio(message.accepted_token_count, message.draft_token_count)
        return cls(message.session_id, message.turn, seconds(message.total), message.generated_token_count, acceptance)

    @property
    def tokens_per_second(self) -> float:
        """Since it began."""
        return self.token_count / self.elapsed if self.elapsed else 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One look, beside the one before."""

    processes: Sequence[Process]
    peers: Sequence[Peer]
    turns: Sequence[Turn]
    """Turns, the longest running first."""
    total: Counts
    """Sum of all processes' counts since they began."""
    rates: Counts
    """A second, since the last look. Empty at the first."""
    history: Sequence[tuple[float, float]] = ()
    """Moments before this look, in seconds, and the tokens a second by then."""

    def sum_of(self, name: str) -> int:
        """One of ProcessStatus' numbers of now, of all processes."""
        return sum(getattr(process.status, name) for process in self.processes)


@dataclass(slots=True)
class Looks:
    """Follows an orchestrator."""

    _processes: dict[int, Process] = field(default_factory=dict)
    _steps: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    _history: list[tuple[float, float]] = field(default_factory=list)

    def take(self, answer: orchestrator_pb2.GetStatusResponse, now: float) -> Figures:
        """Return the figures of a look at the moment ``now``, in seconds of any clock."""
        seen_before = bool(self._processes)
        processes = [self._process(status) for status in answer.processes]
        self._processes |= {process.status.number: process for process in processes}
        rates = summed(process.rates for process in processes)
        if seen_before:
            self._history.append((now, rates["generated_token_count"]))
        self._history = [entry for entry in self._history if now - entry[0] < HISTORY_SECONDS]
        turns = [Turn.of(turn) for status in answer.processes for turn in status.running_turns]
        return Figures(
            processes=processes,
            peers=self._peers(answer.processes, now),
            turns=sorted(turns, key=lambda turn: turn.elapsed, reverse=True),
            total=summed(process.total for process in processes),
            rates=rates,
            history=[(now - moment, rate) for moment, rate in self._history],
        )

    def _process(self, status: status_pb2.ProcessStatus) -> Process:
        total = Counts.of(status)
        before = self._processes.get(status.number)
        if before is None:
            return Process(status, total, Counts())
        uptime = seconds(status.uptime)
        if uptime < before.uptime or not total.goes_on_from(before.total):  # another process by now
            return Process(status, total, total.a_second(uptime))
        return Process(status, total, total.since(before.total).a_second(uptime - before.uptime))

    def _peers(self, statuses: Sequence[status_pb2.ProcessStatus], now: float) -> list[Peer]:
        told: dict[tuple[str, str], list[status_pb2.PeerStatus]] = {}
        for status in statuses:
            for peer in status.peers:
                told.setdefault((peer.role, peer.address), []).append(peer)
        return [self._peer(key, several, now) for key, several in told.items()]

    def _peer(self, key: tuple[str, str], told: Sequence[status_pb2.PeerStatus], now: float) -> Peer:
        """All processes ask the same service, so any one's answer will do."""
        load = max(
            (peer.load for peer in told if peer.HasField("load")), key=lambda load: load.step_count, default=None
        )
        rate = None
        if load is not None:
            if key in self._steps and now > self._steps[key][0]:
                moment, steps = self._steps[key]
                added = load.step_count - steps
                rate = (added if added >= 0 else load.step_count) / (now - moment)
            self._steps[key] = now, load.step_count
        return Peer(*key, sum(peer.reachable for peer in told), len(told), load, rate)
