"""Files that are rewritten with edits, and the file before as the prediction: simulated.

The real proposer, box of hints, calibration and selection run against simulated step times and a
simulated round trip. An edit renames a word in the whole file, and changes one line in twenty-five.
The second table doubles and halves each number of the proposer.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.report import Report, add_output
from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.run_parts import Part
from orchestrator.proposers import prediction
from orchestrator.rounds.terms import Prediction, RoundTerms
from orchestrator.speculation.settings import SpeculationSettings
from slipstream.engine.hinting.calibration import Calibration
from slipstream.engine.hinting.hints import HintBox
from slipstream.engine.hinting.selection import Offer, select
from slipstream.hosting.hint_wire import hint_of
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling.rule import SamplingRule
from slipstream.step_times import StepTimes
from slipstream.wire.v1 import hint_pb2

NUMBERS = ("_STRIDE", "_AHEAD", "_ODDS")
"""Numbers of the proposer that a person chose."""

STEP, ROW = 0.025, 0.0002
"""Seconds of a step, and of each of its rows."""

LEAD = 128
"""Tokens that the verifier may be ahead of what the orchestrator has received."""

ROUND_TRIPS = (0.0, 0.01, 0.08)
_CHANGED_LINES = 0.04
_ROWS = 512


@dataclass(slots=True)
class Verifier:
    """One run in simulated time, and the orchestrator's end of it."""

    predicted: Sequence[int]
    answer: Sequence[int]
    round_trip: float
    calibration: Calibration
    chosen: list[int] = field(default_factory=list)
    box: HintBox = field(init=False)
    step_count: int = 0
    now: float = 0.0
    traceparent: str = ""
    goes_on = True
    _times: StepTimes = field(default_factory=lambda: StepTimes([(1, STEP + ROW), (_ROWS, STEP + ROW * _ROWS)]))
    _arriving: list[tuple[float, int, hint_pb2.Hint]] = field(default_factory=list)
    _parts: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    _sent_at: float = 0.0
    _received: int = 0

    def __post_init__(self) -> None:
        self.box = HintBox(self.calibration.judge)

    def hint(self, message: hint_pb2.Hint) -> None:
        """Take in a hint, which arrives half a round trip after it is sent."""
        heapq.heappush(self._arriving, (self._sent_at + self.round_trip / 2, len(self._arriving), message))

    def seconds(self) -> float:
        """Generate the answer, and return the seconds until the orchestrator has it."""
        proposer = prediction.PredictionProposer()
        terms = RoundTerms(SamplingRule(), SpeculationSettings(), prediction=Prediction(self.predicted, 1))
        if self.predicted:
            proposer.begin([], len(self.answer), terms, self)
        while len(self.chosen) < len(self.answer):
            self._exchange(proposer, self.now)
            if len(self.chosen) >= self._received + LEAD:
                self._exchange(proposer, self._parts[0][0])
                self.now = max(self.now, self._sent_at + self.round_trip / 2)
                continue
            self._step()
        return self.now + self.round_trip / 2

    def _exchange(self, proposer: prediction.PredictionProposer, now: float) -> None:
        """Let the orchestrator take in the parts, and the verifier the hints, that are there."""
        while self._parts and self._parts[0][0] <= now:
            self._sent_at, tokens = self._parts.pop(0)
            part = Part(tokens, PeerTiming(0, 0, 0, 0), 0, (), (), math.inf, (), 0.0)
            proposer.committed(self._received, part)
            self._received += len(tokens)
        while self._arriving and self._arriving[0][0] <= now:
            self.box.add(hint_of(heapq.heappop(self._arriving)[2], 2**31), self.chosen)

    def _step(self) -> None:
        limit = min(len(self.answer), self._received + LEAD) - len(self.chosen) - 1
        found = self.calibration.best(self.box.candidates(self.chosen), limit) if limit > 0 else None
        hinted: Sequence[int] = ()
        if found is not None:
            candidate, survivals = found
            count = select([Offer(survivals)], 1, 0, _ROWS, self._times).counts[0]
            hinted = candidate.tokens[:count]
        self.now += STEP + ROW * (1 + len(hinted))
        self.step_count += 1
        at, right = len(self.chosen), 0
        while right < len(hinted) and hinted[right] == self.answer[at + right]:
            right += 1
        tokens = tuple(self.answer[at : at + right + 1])
        self.chosen += tokens
        self._parts.append((self.now + self.round_trip / 2, tokens))


def edited(lines: Sequence[str], others: Sequence[str], rng: random.Random) -> list[str]:
    """Return a file's lines with one word renamed and some lines left out, new or repeated."""
    words = Counter(word for line in lines for word in re.findall(r"[a-z_]{5,}", line))
    old = rng.choice([word for word, count in words.items() if count > 2] or ["import"])
    result = []
    for line in lines:
        line = re.sub(rf"\b{old}\b", f"{old}_of_run", line)
        kind = rng.choice(("out", "new", "twice")) if rng.random() < _CHANGED_LINES else ""
        result += [] if kind == "out" else [line]
        result += [rng.choice(others)] if kind == "new" else [line] if kind == "twice" else []
    return result


def pairs(count: int, length: int) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Return predictions and answers as tokens of the embedded pair's tokenizer: modules of this
    checkout, before and after an edit."""
    tokenizer = Tokenizer.from_file(str(embedded_directory("target") / "tokenizer.json"))
    files = sorted(Path(__file__).parents[1].glob("orchestrator/*/*.py"))
    rng = random.Random(1)
    texts = [path.read_text().splitlines(keepends=True) for path in rng.sample(files, len(files))]
    texts = [lines for lines in texts if len(lines) > 40][:count]
    found: list[tuple[Sequence[int], Sequence[int]]] = []
    for lines, others in zip(texts, [*texts[1:], texts[0]], strict=True):
        after = edited(lines, others, rng)
        before, answer = (tokenizer.encode("".join(each), add_special_tokens=False).ids for each in (lines, after))
        found.append((array("i", before), answer[:length]))
    return found


@contextmanager
def changed(name: str, factor: float) -> Iterator[None]:
    """Multiply a number of the proposer; of the odds, the odds of being wrong."""
    value, survivals = getattr(prediction, name), [*prediction._SURVIVALS]
    if name == "_ODDS":
        odds = 1 - (1 - value) * factor
        prediction._SURVIVALS[:] = [odds**power for power in range(1, len(survivals) + 1)]
    else:
        setattr(prediction, name, round(value * factor))
    try:
        yield
    finally:
        setattr(prediction, name, value)
        prediction._SURVIVALS[:] = survivals


def rate(known: Sequence[tuple[Sequence[int], Sequence[int]]], round_trip: float) -> float:
    """Return the tokens a second of all answers, one after another, from which the verifier
    learns."""
    calibration = Calibration()
    seconds = sum(Verifier(before, after, round_trip, calibration).seconds() for before, after in known)
    return sum(len(after) for _, after in known) / seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predicted_edits", description=__doc__)
    parser.add_argument("--files", type=int, default=40, help="files that are rewritten")
    parser.add_argument("--tokens", type=int, default=1500, help="most tokens of an answer")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report("predicted-edits", __doc__ or "", options.output)
    known = pairs(options.files, options.tokens)
    wrong = [(other[0], after) for (_, after), other in zip(known, [*known[1:], known[0]], strict=True)]
    cases: dict[str, Sequence[tuple[Sequence[int], Sequence[int]]]] = {
        "no prediction": [((), after) for _, after in known],
        "another file as the prediction": wrong,
        "the file before": known,
        "the answer itself": [(after, after) for _, after in known],
    }
    columns = [f"round trip {trip * 1000:.0f} ms" for trip in ROUND_TRIPS]
    table = Table("case", *columns, title="tokens/s; verification 25 ms + 0.2 per row")
    for case, sent in cases.items():
        table.add_row(case, *[f"{rate(sent, trip):.1f}" for trip in ROUND_TRIPS])
    report.show(table)
    usual = [rate(known, trip) for trip in ROUND_TRIPS]
    table = Table("number", *columns, title="the file before; change of tokens/s in percent")
    for name in NUMBERS:
        for label, factor in (("halved", 0.5), ("doubled", 2.0)):
            with changed(name, factor):
                found = [rate(known, trip) / base for trip, base in zip(ROUND_TRIPS, usual, strict=True)]
            table.add_row(f"{name} {label}", *[f"{100 * (ratio - 1):+.1f}" for ratio in found])
    report.show(table)


if __name__ == "__main__":
    main()
