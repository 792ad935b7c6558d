"""Rows of a turn's waterfall: a round each, or several rounds in a row that need no look of their
own. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.cli.remarks import is_bad, notes_of, told_of
from slipstream.cli.timeline import Kind, Part, own_parts_of, parts_of
from slipstream.cli.words import margin_of, proposer_of
from slipstream.rpc.wire import seconds
from slipstream.v1 import trace_pb2

_LEAST_FOLDED = 3
"""Fewer rounds are shown one by one."""

_PROPOSERS = {"ngram": "n-gram", "prediction": "caller", "": "-"}
"""Words that fit into the column."""


@dataclass(frozen=True, slots=True)
class Row:
    """One round, or several that follow one another: then numbers are their means."""

    rounds: Sequence[trace_pb2.RoundTrace]

    @property
    def folded(self) -> bool:
        """True if it stands for several rounds."""
        return len(self.rounds) > 1

    @property
    def number(self) -> str:
        """The round's number, or the first and the last."""
        first, last = self.rounds[0].number, self.rounds[-1].number
        return f"{first}-{last}" if self.folded else str(first)

    @property
    def start(self) -> float:
        """Seconds from the turn's beginning."""
        return seconds(self.rounds[0].start)

    @property
    def length(self) -> float:
        """Seconds that a round took."""
        return sum(seconds(trace.total) for trace in self.rounds) / len(self.rounds)

    @property
    def tokens(self) -> str:
        """Tokens drafted, accepted and committed in a round."""
        counts = (
            [trace.draft_token_count for trace in self.rounds],
            [trace.accepted_token_count for trace in self.rounds],
            [trace.committed_token_count for trace in self.rounds],
        )
        means = [sum(count) / len(self.rounds) for count in counts]
        return "/".join(f"{mean:.1f}" if self.folded and mean < 9.95 else f"{mean:.0f}" for mean in means)

    @property
    def proposer(self) -> str:
        """The source of most proposals."""
        ((proposer, _),) = Counter(proposer_of(trace) for trace in self.rounds).most_common(1)
        return _PROPOSERS.get(proposer, proposer)

    @property
    def margin(self) -> str:
        """The least lead of a chosen token."""
        known = [trace for trace in self.rounds if trace.HasField("least_margin")]
        return margin_of(min(known, key=lambda trace: trace.least_margin, default=self.rounds[0]))

    @property
    def bad(self) -> bool:
        """True if the round brought nothing."""
        return any(is_bad(trace) for trace in self.rounds)

    def parts(self) -> list[Part]:
        """On the turn's time."""
        return [part for trace in self.rounds for part in parts_of(trace)]

    def own_parts(self) -> list[Part]:
        """Parts of the round; of several rounds each kind's mean, one after another."""
        parts = [part for trace in self.rounds for part in own_parts_of(trace)]
        if not self.folded:
            return parts
        means, start = [], self.start
        for kind in Kind:
            length = sum(part.length for part in parts if part.kind is kind) / len(self.rounds)
            if length:
                means.append(Part(kind, start, start + length))
                start += length
        return means


def rows_of(rounds: Sequence[trace_pb2.RoundTrace], *, every_round: bool) -> list[Row]:
    """Return the rows of a turn. Unless every round is wanted, rounds are folded between those that
    a remark is about, that something went wrong in, or that are the first."""
    alone = {trace.number for trace in rounds if every_round or trace.number == 1 or notes_of(trace)}
    alone |= {trace.number for trace in told_of(rounds)}
    runs: list[list[trace_pb2.RoundTrace]] = []
    for trace in rounds:
        before = runs[-1][-1].number if runs else 0
        if trace.number == before + 1 and alone.isdisjoint((before, trace.number)):
            runs[-1].append(trace)
        else:
            runs.append([trace])
    return [Row(part) for run in runs for part in ([run] if len(run) >= _LEAST_FOLDED else [[one] for one in run])]
