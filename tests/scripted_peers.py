"""Peers that a test answers for, and rounds over them."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.protobuf import duration_pb2

from orchestrator.peers.checking.faults import PeerFaultError
from orchestrator.peers.checking.hints import HintCheck
from orchestrator.peers.draft_peer import ProposeSink
from orchestrator.peers.draft_run import DraftRun, GuessTerms, HintListener
from orchestrator.peers.exchange import PeerTiming, Verification
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.run_parts import Part, Step
from orchestrator.peers.sequence import PeerSequence, Position
from orchestrator.peers.step_curve import StepCurve
from orchestrator.peers.verifiers import Verifiers
from orchestrator.rounds.drafting import DraftSide
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.verification import VerifierSide
from orchestrator.speculation.proposal import Proposal
from slipstream.agreed import WIRE_VERSION
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.sampling.outcome import TokenDistribution
from slipstream.sampling.rule import SamplingDefaults
from slipstream.v1 import sampling_pb2
from slipstream.wire.v1 import draft_pb2, hint_pb2, model_pb2

MODEL = ModelInfo("model", "arithmetic", 1000, "t", 4096, (), SamplingDefaults(), "float32", "cpu", 32, "w", 2)
TIMING = PeerTiming(0.0, 0.001, 0.001, 0.002)


def right_info() -> model_pb2.ModelInfo:
    """Return facts that a service may state about its model."""
    return model_pb2.ModelInfo(
        name="model",
        architecture="arithmetic",
        vocabulary_size=259,
        tokenizer_fingerprint="t",
        context_length=256,
        end_token_ids=[2],
        sampling_defaults=sampling_pb2.SamplingParameters(temperature=0.5, top_p=0.9),
        dtype="float32",
        device="cpu",
        max_draft_length=64,
        weights_fingerprint="w",
        step_times=[model_pb2.StepTime(token_count=8, time=duration_pb2.Duration(nanos=1000))],
        sampling_version=2,
        kv_token_count=4096,
        kv_page_size=16,
        wire_version=WIRE_VERSION,
    )


def new_note(number: int = 1, base_length: int = 3, trace_prefix: str = "") -> RoundNote:
    """Return the note of a round that begins now."""
    return RoundNote(number, base_length, time.monotonic(), trace_prefix)


def drawn(*tokens: int) -> Proposal:
    """A proposal of tokens that were drawn with certainty."""
    return Proposal(tokens, tuple(TokenDistribution((token,), (1.0,)) for token in tokens))


class Draft:
    """A draft whose requests the test answers, by their sinks."""

    is_starting = False
    reachable = True
    trouble = ""

    def __init__(self) -> None:
        self.info, self.address = MODEL, "there:1"
        self.runs: list[DraftRun] = []
        """Stretches of guessing, whose results the test gives."""
        self.told: list[draft_pb2.DraftItem] = []
        """Items about them, the starts among them."""
        self.given_up: list[DraftRun] = []
        self.faults: list[PeerFaultError] = []
        self.sinks: list[ProposeSink] = []
        self.lengths: list[int] = []
        """Draft tokens that each request asked for."""
        self.withdrawn: list[ProposeSink] = []
        self.asked = asyncio.Event()

    def propose(self, sequence: PeerSequence, terms: Any, position: Position, *rest: Any) -> Callable[[], None]:
        sink = rest[-1]
        self.sinks.append(sink)
        self.lengths.append(rest[0])
        self.asked.set()
        return lambda: self.withdrawn.append(sink)

    def answer(self, index: int, proposal: Proposal) -> None:
        """Answer one request."""
        self.sinks[index].finish(proposal, TIMING)

    def start_run(
        self,
        sequence: PeerSequence,
        terms: Any,
        position: Position,
        guess: GuessTerms,
        rule: Any,
        traceparent: str,
        listener: HintListener,
    ) -> DraftRun:
        length, handle = position.base_length + len(position.tail), sequence.handle
        start = draft_pb2.StartDraft(
            base_length=position.base_length,
            tail=position.tail,
            until_length=guess.until_length,
            least_length=guess.least_length,
            price=guess.price,
            traceparent=traceparent,
        )
        item = draft_pb2.DraftItem(handle=handle, round=sequence.next_round(), start=start)
        check = HintCheck(length, guess.until_length, self.info.vocabulary_size)
        run = DraftRun(self, item, check, listener, lambda: sequence.opened(handle))
        self.told.append(item)
        self.runs.append(run)
        return run

    def tell(self, item: draft_pb2.DraftItem) -> None:
        self.told.append(item)

    def withdraw(self, run: DraftRun) -> None:
        self.given_up.append(run)

    def note_fault(self, fault: PeerFaultError) -> None:
        self.faults.append(fault)

    def close_sequence(self, sequence: PeerSequence) -> None:
        pass


class Verifier:
    """A verifier that accepts everything once it may, and says that its steps took what the test
    says."""

    info = MODEL
    is_starting = is_stalled = False

    def __init__(self, address: str = "here") -> None:
        self.address = address
        self.steps = StepCurve()
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.is_away = False
        self.timings: Iterator[PeerTiming] = itertools.repeat(TIMING)
        self.positions: list[Position] = []
        self.parts: list[Part] = []
        """Parts of runs to send before those of one token."""

    async def verify(
        self, sequence: PeerSequence, terms: Any, position: Position, proposal: Proposal, *rest: Any
    ) -> Verification:
        self.positions.append(position)
        self.asked.set()
        await self.may_answer.wait()
        if self.is_away:
            raise PeerError(Code.UNAVAILABLE, "STREAM_LOST", "")
        return Verification(len(proposal), 7, 1, next(self.timings), (), ())

    def start_run(self, sequence: PeerSequence, terms: Any, position: Position, *rest: Any) -> ScriptedRun:
        self.positions.append(position)
        self.hinting = rest[-1]
        self.asked.set()
        self.run = ScriptedRun(self, position)
        return self.run

    def close_sequence(self, sequence: PeerSequence) -> None:
        pass


class ScriptedRun:
    """A run whose parts have one token each, and come once the verifier may answer."""

    traceparent = ""

    def __init__(self, verifier: Verifier, position: Position) -> None:
        self.length = position.base_length + len(position.tail)
        self.goes_on = True
        self.is_stopped = False
        self.hints: list[hint_pb2.Hint] = []
        self._verifier = verifier

    async def part(self) -> Part:
        await self._verifier.may_answer.wait()
        if self._verifier.is_away:
            self.goes_on = False
            raise PeerError(Code.UNAVAILABLE, "STREAM_LOST", "")
        if self._verifier.parts:
            part = self._verifier.parts.pop(0)
            self.length += len(part.tokens)
            return part
        self.length += 1
        timing = next(self._verifier.timings)
        return Part((7,), timing, 1, (), (), math.inf, (Step(1, 0, 0, None, 0.0, timing),), time.monotonic())

    def hint(self, message: hint_pb2.Hint) -> None:
        self.hints.append(message)

    def stop(self) -> None:
        self.is_stopped = True


def side_of(draft: Draft) -> DraftSide:
    """A draft that has been reached."""
    return DraftSide(draft, MODEL, lease_seconds=60, deadline_seconds=30)


def rounds_over(drafts: Draft | Sequence[Draft], *verifiers: Verifier) -> Rounds:
    """Rounds over these peers, all of them reached."""
    home = Verifiers(verifiers)
    for verifier in verifiers:
        home.admit(verifier)
    verifying = VerifierSide(home, MODEL, lease_seconds=60, patience_seconds=1)
    given = [drafts] if isinstance(drafts, Draft) else drafts
    return Rounds(verifying, Drafts(map(side_of, given)), MODEL)
