"""All disturbances of the proof, one class or object each. A new one needs one entry in ALL.

A disturbance has a scope. CELL: how the processes are set up. WAVE: what happens while a batch of
prompts runs. TURN: how one prompt is sent. It counts each strike; one that never struck fails the
run.
"""

from __future__ import annotations

import enum
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import grpc

from proving.hint_faults import HintsContradicted, HintsLate, HintsMadeUp, HintsSpoiled
from proving.pairs import COMPILED, CUDA, GGUF, RANKS, TORCH, TWO_VOCABULARIES
from proving.proxy import Fault, RunItem
from proving.run_faults import Delayed, GrantLost, HandlesForgotten, Paused, RunFault, Strike, Twice
from proving.system import Setup, System
from slipstream.client import Client, PeerError, Result, Settings
from slipstream.wire.v1 import model_pb2, model_pb2_grpc

VOCABULARY_SIZE = 4096
LONGEST_DRAFT = 8
_LOOK_SECONDS = 0.2
"""Seconds between two looks at a verifier's counters."""


class Scope(enum.Enum):
    """The reach of a disturbance."""

    CELL = enum.auto()
    WAVE = enum.auto()
    TURN = enum.auto()


@dataclass(slots=True)
class Wave:
    """A batch of prompts while it runs, with everything that a disturbance may read or change."""

    system: System
    client: Client
    rng: random.Random
    token_count: int
    """Tokens that the wave will generate."""
    complain: Callable[[str], None]
    """Report something that must not happen besides a changed answer."""
    over: threading.Event = field(default_factory=threading.Event)
    generated: dict[int, int] = field(default_factory=dict)
    """Number of tokens that each turn has so far, by prompt."""
    in_flight: dict[int, Sequence[int]] = field(default_factory=dict)
    """Indices of the running turns' prompts."""
    seats: dict[int, int] = field(default_factory=dict)
    """The verifier that each running turn was last seen on, if a disturbance records it."""

    def wait_for_progress(self, share: float) -> bool:
        """Wait until that share of the tokens has arrived. Returns False if the wave ends
        before."""
        while sum(list(self.generated.values())) < share * self.token_count:
            if self.over.wait(0.01):
                return False
        return not self.over.is_set()


class Disturbance:
    """One disturbance. The defaults do nothing."""

    name: str
    unit: str
    """Unit of one strike, in the plural."""
    scope: Scope
    group: str | None = None
    """Name of a group of which at most one disturbance acts at a time."""
    proxied = False
    """True if the disturbance needs proxies before the services."""
    needs_draft = False
    """True if the disturbance means nothing to a turn without speculation."""
    disables_draft = False
    """True if a turn that meets the disturbance has no speculation."""
    scored = True
    """False if a turn that meets the disturbance brings no log-probabilities."""
    everywhere = False
    """For WAVE: True if it meets every wave that it fits."""
    portions = 1
    """Number of least shares that the disturbance gets. Cheap ones get more."""
    weight = 1
    """For TURN: frequency beside the others of an exhaustive group."""
    reader_leaves_after: int | None = None
    """Tokens after which a TURN's reader vanishes. It comes back at that token, repeatedly."""
    conflicts: tuple[str, ...] = ()
    """Names of disturbances that would make this one meaningless."""

    def setup(self, setup: Setup) -> Setup:
        """For CELL: change the setup of the processes."""
        return setup

    def session_count(self, count: int, most: int, rng: random.Random) -> int:
        """Return the number of sessions that run at a time: ``count``, unless the disturbance needs
        another number, at most ``most``."""
        return count

    def rank(self, place: int, prompt_length: int) -> float:
        """For TURN: return the rank of a turn, lowest first, from its place in the cell and its
        prompt's length."""
        return 0

    def settings(self, settings: Settings) -> Settings:
        """Return the settings that a turn is sent with."""
        return settings

    def before(self, client: Client, prompt: Sequence[int]) -> None:
        """Act just before a turn."""

    def prediction(self, client: Client, prompt: Sequence[int], settings: Settings) -> Sequence[int]:
        """For TURN: return the tokens to send as a prediction of the answer; empty for none."""
        return ()

    def verifier_fault(self, wave: Wave, index: int, strike: Strike) -> Fault | None:
        """Return the fault for the traffic of verifier ``index`` during a wave."""
        return None

    def draft_fault(self, wave: Wave, strike: Strike) -> Fault | None:
        """Return the fault for the draft's traffic during a wave."""
        return None

    def during(self, wave: Wave, strike: Strike) -> None:
        """Run in a thread while a wave runs, and end with it."""

    def strikes_in(self, result: Result) -> int:
        """Return the strikes that a turn's own result shows."""
        return 0


class DraftLength(Disturbance):
    """A fixed number of hint tokens a step. 0 is plain decoding."""

    scope = Scope.TURN
    group = "draft length"
    unit = "rounds"

    def __init__(self, length: int, weight: int) -> None:
        """``weight``: frequency beside the other lengths."""
        self.length = length
        self.weight = weight
        self.disables_draft = not length
        self.name = f"{length} hint token{'s' * (length > 1)} a step" if length else "speculation off"

    def settings(self, settings: Settings) -> Settings:
        return replace(settings, draft_length=self.length)

    def strikes_in(self, result: Result) -> int:
        return result.draft_count if self.length else result.round_count - result.draft_count


class SeveralSteps(Disturbance):
    """Plain decoding brings no log-probabilities. So the verifier takes several steps in one call,
    and only the token ids are compared."""

    name = "no log-probabilities: several steps in one call"
    scope = Scope.TURN
    group = "draft length"
    unit = "tokens told together with others"
    disables_draft = True
    weight = 3
    scored = False

    def settings(self, settings: Settings) -> Settings:
        return replace(settings, top_logprob_count=None, draft_length=0)

    def strikes_in(self, result: Result) -> int:
        return max(0, result.generated_token_count - result.round_count)


class Adaptive(Disturbance):
    """The verifier chooses the number of hint tokens step by step."""

    name = "adaptive"
    scope = Scope.TURN
    group = "draft length"
    unit = "rounds with a proposal"
    weight = 2

    def settings(self, settings: Settings) -> Settings:
        return replace(settings, draft_length="adaptive")

    def strikes_in(self, result: Result) -> int:
        return result.draft_count


class Ngrams(Disturbance):
    """All proposals come from the session's own tokens."""

    name = "n-gram proposals"
    scope = Scope.TURN
    group = "draft length"
    unit = "tokens proposed"
    disables_draft = True
    weight = 6

    def settings(self, settings: Settings) -> Settings:
        return replace(settings, draft_length=8, proposer="ngram")

    def strikes_in(self, result: Result) -> int:
        return result.ngram_token_count


class Predicted(Disturbance):
    """A turn is sent with a prediction that is the answer's first half, in part: some tokens are
    wrong, some are missing, and some are repeated."""

    name = "answer predicted, in part rightly"
    scope = Scope.TURN
    unit = "tokens accepted"
    conflicts = ("speculation off", "no log-probabilities: several steps in one call")

    def prediction(self, client: Client, prompt: Sequence[int], settings: Settings) -> Sequence[int]:
        asked = replace(settings, max_token_count=(settings.max_token_count or 2) // 2, draft_length=0)
        answer = client.generate(prompt, asked).wait().token_ids
        rng, predicted = random.Random(settings.seed), list[int]()
        while len(predicted) < 2 * len(answer):
            start = rng.randrange(len(answer))
            predicted += answer[start if predicted else 0 : start + rng.randint(4, 40)]
            predicted += [rng.randrange(VOCABULARY_SIZE // 2) for _ in range(rng.randrange(3))]
        return predicted

    def strikes_in(self, result: Result) -> int:
        return result.prediction_accepted_token_count


class ReaderLost(Disturbance):
    """The reader of a turn vanishes repeatedly, and each time continues from the token that it had
    reached."""

    name = "reader lost and back"
    scope = Scope.TURN
    unit = "times taken up"
    reader_leaves_after = 10


class OneSession(Disturbance):
    """Prompts run one after another."""

    name = "one session"
    unit = "turns"
    scope = Scope.WAVE
    group = "sessions"

    def session_count(self, count: int, most: int, rng: random.Random) -> int:
        return 1

    def strikes_in(self, result: Result) -> int:
        return 1


class ManySessions(Disturbance):
    """Sessions join and leave at random moments, so that every batch differs."""

    name = "2 to 16 sessions, joining and leaving"
    unit = "turns"
    scope = Scope.WAVE
    group = "sessions"
    everywhere = True

    def session_count(self, count: int, most: int, rng: random.Random) -> int:
        return min(most, max(2, round(rng.triangular(2, most, most))))

    def strikes_in(self, result: Result) -> int:
        return 1


class OthersCancelled(Disturbance):
    """Chats beside the prompts are cancelled or abandoned in the middle of a turn."""

    name = "other sessions cancelled in mid-turn"
    unit = "turns cancelled"
    scope = Scope.WAVE
    conflicts = ("one session",)

    def during(self, wave: Wave, strike: Strike) -> None:
        rng = random.Random(wave.rng.random())
        while not wave.over.is_set():
            try:
                self._one(wave, rng, strike)
            except PeerError:  # a second disturbance hit it, and no test reads this session's text
                wave.over.wait(0.2)

    def _one(self, wave: Wave, rng: random.Random, strike: Strike) -> None:
        settings = Settings(
            temperature=1.0, max_token_count=256, ignore_end_tokens=True, draft_length=rng.randint(0, 8)
        )
        with wave.client.chat(settings=settings) as chat:
            reply = chat.send(f"Tell me about number {rng.randrange(10**6)}.")
            pieces = iter(reply)
            for _ in range(rng.randint(1, 12)):
                next(pieces, None)
            if rng.random() < 0.5:
                chat.close()
                strike(1)
            else:
                chat.cancel()
                for _ in pieces:
                    pass
                strike(reply.result.finish_reason == "CANCELLED")


class Prefill(Disturbance):
    """The verifier's prefill chunks have a fixed number of tokens."""

    scope = Scope.CELL
    group = "prefill"
    unit = "prompts prefilled"

    def __init__(self, chunk: int, max_step_tokens: int) -> None:
        self.chunk = chunk
        self.max_step_tokens = max_step_tokens
        self.name = f"prefill in chunks of {chunk}"

    def setup(self, setup: Setup) -> Setup:
        return replace(setup, prefill_chunk=self.chunk, max_step_tokens=self.max_step_tokens)

    def strikes_in(self, result: Result) -> int:
        return int(result.prompt_token_count > result.cached_token_count)


class PageSize(Disturbance):
    """The verifier's KV pages have a fixed number of tokens."""

    scope = Scope.CELL
    group = "pages"
    unit = "pages filled"

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.name = f"pages of {page_size} tokens"

    def setup(self, setup: Setup) -> Setup:
        return replace(setup, page_size=self.page_size)

    def strikes_in(self, result: Result) -> int:
        return (result.prompt_token_count + result.generated_token_count) // self.page_size


class WarmCache(Disturbance):
    """The same prompt was generated just before, so its pages are cached."""

    name = "warm prefix cache"
    unit = "turns that found pages"
    scope = Scope.TURN
    group = "cache"

    def rank(self, place: int, prompt_length: int) -> float:
        return prompt_length < 40  # a page must fit in

    def before(self, client: Client, prompt: Sequence[int]) -> None:
        client.generate(prompt, Settings(max_token_count=1, draft_length=0)).wait()

    def strikes_in(self, result: Result) -> int:
        return int(result.cached_token_count > 0)


class ColdCache(Disturbance):
    """The prompts are the first ones of freshly started services."""

    name = "cold prefix cache"
    unit = "turns that found none"
    scope = Scope.TURN
    group = "cache"

    def rank(self, place: int, prompt_length: int) -> float:
        return place

    def strikes_in(self, result: Result) -> int:
        return int(result.cached_token_count == 0)


class TooFewPages(Disturbance):
    """The KV pool is too small for the sessions. They take one another's pages and are prefilled
    again and again."""

    name = "too few pages: taken away, prefilled again"
    unit = "sequences that lost pages"
    scope = Scope.CELL
    group = "verifiers"
    proxied = True
    conflicts = ("one session",)
    share = 0.65
    """Share of the pages that all sessions hold at their ends. They hold about as much in the
    middle of a turn, so sometimes a session loses its pages. With far less every round would be a
    prefill."""

    def session_count(self, count: int, most: int, rng: random.Random) -> int:
        return most

    def setup(self, setup: Setup) -> Setup:
        wanted = round(self.share * setup.session_count * setup.common_length)
        return replace(setup, kv_token_count=max(wanted, setup.longest_length + LONGEST_DRAFT + 2 * setup.page_size))

    def during(self, wave: Wave, strike: Strike) -> None:
        # A run's loss has no result of its own: the verifier reads the run's tokens again.
        seen = _preempted_count(wave.system)
        while not wave.over.wait(_LOOK_SECONDS):
            count = _preempted_count(wave.system)
            if count is not None:
                strike(max(0, count - (seen or 0)))
                seen = count


class RunsDisturbed(Disturbance):
    """The proxy disturbs the messages about runs."""

    scope = Scope.WAVE
    proxied = True

    def __init__(
        self,
        name: str,
        unit: str,
        fault: type[RunFault],
        group: str | None = None,
        conflicts: tuple[str, ...] = (),
        *,
        needs_draft: bool = False,
    ) -> None:
        self.name, self.unit, self.group, self.conflicts = name, unit, group, conflicts
        self.needs_draft = needs_draft
        self._fault = fault

    def verifier_fault(self, wave: Wave, index: int, strike: Strike) -> Fault:
        return self._fault(wave.rng, strike)


class StreamsDropped(Disturbance):
    """The stream to a service ends between rounds or during one, and has to be opened again."""

    unit = "streams dropped"
    portions = 3
    scope = Scope.WAVE
    proxied = True

    def __init__(self, role: str) -> None:
        self.role = role
        self.name = f"{role}'s stream dropped"
        self.needs_draft = role == "draft"

    def verifier_fault(self, wave: Wave, index: int, strike: Strike) -> Fault | None:
        return _Drop(wave, strike) if self.role == "verifier" else None

    def draft_fault(self, wave: Wave, strike: Strike) -> Fault | None:
        return _Drop(wave, strike) if self.role == "draft" else None


class _Drop(Fault):
    """Ends the stream soon after its start, and then every hundred messages or two. A stream of
    runs, which has few messages, ends every ten."""

    def __init__(self, wave: Wave, strike: Strike) -> None:
        self._wave = wave
        self._strike = strike
        self._left = {has_runs: wave.rng.randint(3, 15) for has_runs in (False, True)}

    def breaks(self, *, has_runs: bool) -> bool:
        self._left[has_runs] -= 1
        if self._left[has_runs]:
            return False
        self._left[has_runs] = self._wave.rng.randint(*((3, 20) if has_runs else (60, 240)))
        self._strike(1)
        return True


class DraftAway(Disturbance):
    """The draft's address answers UNAVAILABLE, comes back, and goes away again."""

    name = "draft away for a while"
    portions = 3
    unit = "absences"
    scope = Scope.WAVE
    proxied = True
    needs_draft = True

    def draft_fault(self, wave: Wave, strike: Strike) -> Fault:
        return _Away(wave, strike)


class _Away(Fault):
    """Answers for some messages, and then refuses for some seconds."""

    def __init__(self, wave: Wave, strike: Strike) -> None:
        self._wave = wave
        self._strike = strike
        self._left = wave.rng.randint(3, 15)
        self._back = 0.0

    def refuses(self) -> bool:
        if time.monotonic() < self._back:
            return True
        self._left -= 1
        if self._left:
            return False
        self._left = self._wave.rng.randint(20, 120)
        self._back = time.monotonic() + self._wave.rng.uniform(0.1, 1.5)
        self._strike(1)
        return True


class DraftKilled(Disturbance):
    """SIGKILL to the draft in the middle of a turn, and a new process at its address."""

    name = "draft killed and restarted"
    unit = "kills"
    scope = Scope.WAVE
    needs_draft = True

    def during(self, wave: Wave, strike: Strike) -> None:
        for share in _moments(wave):
            if not wave.wait_for_progress(share):
                return
            wave.system.wait_for("draft")
            wave.system.kill("draft")
            strike(1)
            wave.over.wait(wave.rng.random())
            wave.system.start_draft()


class OtherDraft(Disturbance):
    """A different model drafts: the target itself in float32, which agrees almost always."""

    name = "draft replaced by another model"
    unit = "rounds it proposed for"
    scope = Scope.CELL

    def setup(self, setup: Setup) -> Setup:
        return replace(setup, draft=setup.pair.target)

    def strikes_in(self, result: Result) -> int:
        return result.draft_count


class OrchestratorKilled(Disturbance):
    """SIGKILL to the orchestrator in the middle of a turn, and a new process at its address, which
    continues its turns."""

    name = "orchestrator killed and restarted"
    unit = "kills"
    scope = Scope.WAVE

    def during(self, wave: Wave, strike: Strike) -> None:
        for share in _moments(wave):
            if not wave.wait_for_progress(share):
                return
            wave.system.wait_for("orchestrator")
            wave.system.kill("orchestrator")
            strike(1)
            wave.system.start_orchestrator()


class VerifierKilled(Disturbance):
    """SIGKILL to the verifier in the middle of a turn, and a new process at its address. The turns
    wait."""

    name = "verifier killed and restarted"
    unit = "kills"
    scope = Scope.WAVE
    group = "verifier's end"
    conflicts = ("sessions moved to a second verifier",)

    def during(self, wave: Wave, strike: Strike) -> None:
        for share in _moments(wave):
            if not wave.wait_for_progress(share):
                return
            wave.system.wait_for("verifier 0")
            wave.system.kill("verifier 0")
            strike(1)
            wave.system.start_verifier(0)


class RankLost(Disturbance):
    """A signal to a rank of the verifier's group in the middle of a turn. The group ends by itself,
    and a new one begins at its address."""

    unit = "groups that ended"
    scope = Scope.WAVE
    group = "verifier's end"
    conflicts = ("sessions moved to a second verifier",)

    def __init__(self, name: str, number: signal.Signals) -> None:
        """``number`` kills the rank or freezes it."""
        self.name = name
        self._number = number

    def during(self, wave: Wave, strike: Strike) -> None:
        for share in _moments(wave):
            if not wave.wait_for_progress(share):
                return
            wave.system.wait_for("verifier 0")
            wave.system.lose_rank("verifier 0", self._number)
            strike(1)
            wave.system.start_verifier(0)


class SecondVerifier(Disturbance):
    """Two verifiers, one of which is killed or stopped while turns run on it. They continue on the
    other one."""

    name = "sessions moved to a second verifier"
    unit = "turns moved"
    scope = Scope.CELL
    group = "verifiers"
    proxied = True

    def setup(self, setup: Setup) -> Setup:
        return replace(setup, verifier_count=2)

    def during(self, wave: Wave, strike: Strike) -> None:
        rng = random.Random(wave.rng.random())
        for share in _moments(wave):
            if not wave.wait_for_progress(share):
                return
            for index in range(2):  # one of them must be there
                wave.system.wait_for(f"verifier {index}")
            seats = list(wave.seats.values())
            victim = max(range(2), key=seats.count)
            wave.system.kill(f"verifier {victim}", rng.choice((signal.SIGKILL, signal.SIGTERM)))
            wave.system.start_verifier(victim)

    def verifier_fault(self, wave: Wave, index: int, strike: Strike) -> Fault:
        class Watch(Fault):
            def run_items(self, items: list[RunItem]) -> list[RunItem]:
                for item in items:
                    if item.HasField("start") and item.start.base_length == 0:  # a turn states all where it is new
                        self._take_seat(item.start.tail)
                return items

            def _take_seat(self, tokens: Sequence[int]) -> None:
                for turn, prompt in list(wave.in_flight.items()):
                    if len(tokens) >= len(prompt) and list(tokens[: len(prompt)]) == list(prompt):
                        moved = len(tokens) > len(prompt) and wave.seats.get(turn, index) != index
                        wave.seats[turn] = index
                        strike(moved)

        return Watch()


def _preempted_count(system: System) -> int | None:
    """Return the number of sequences that have lost pages on the only verifier; None while it is
    away."""
    try:
        with system.connect("verifier 0") as channel:
            stub = model_pb2_grpc.ModelServiceStub(channel)
            return stub.GetLoad(model_pb2.GetLoadRequest(), timeout=_LOOK_SECONDS).load.preempted_count
    except grpc.RpcError:
        return None


def _moments(wave: Wave) -> list[float]:
    """Return the moments to strike a service, as shares of the wave's tokens: about one for each
    set of sessions."""
    count = max(1, round(wave.token_count / (16 * 128)))
    return [(index + wave.rng.uniform(0.2, 0.6)) / count for index in range(count)]


ALL: tuple[Disturbance, ...] = (
    # After its answer the embedded target talks nonsense, which no draft guesses: long proposals
    # are the dear ones.
    DraftLength(1, weight=3),
    DraftLength(3, weight=3),
    DraftLength(5, weight=2),
    DraftLength(8, weight=2),
    DraftLength(0, weight=3),
    Adaptive(),
    Ngrams(),
    SeveralSteps(),
    Predicted(),
    ReaderLost(),
    OneSession(),
    ManySessions(),
    OthersCancelled(),
    Prefill(8, 64),
    Prefill(16, 64),
    Prefill(64, 128),
    Prefill(256, 512),
    *(PageSize(size) for size in (8, 16, 32)),
    WarmCache(),
    ColdCache(),
    TooFewPages(),
    RunsDisturbed("messages of runs delayed", "delays", Delayed),
    RunsDisturbed("starts, grants, hints and stops sent twice", "items doubled", Twice),
    RunsDisturbed("runs granted a few tokens at a time", "pauses", Paused, "grants"),
    # Others that go on would hide the silence.
    RunsDisturbed("grants of a run lost", "runs", GrantLost, "grants", ("other sessions cancelled in mid-turn",)),
    RunsDisturbed("hints made up", "hints", HintsMadeUp),
    RunsDisturbed("hints late, repeated and out of order", "hints held", HintsLate, "hints", needs_draft=True),
    RunsDisturbed("hints contradicted by another draft", "hints", HintsContradicted, "hints", needs_draft=True),
    RunsDisturbed("hints wrong from some token on", "hints", HintsSpoiled, "hints", needs_draft=True),
    RunsDisturbed("handles forgotten in mid-run", "handles", HandlesForgotten),
    StreamsDropped("verifier"),
    StreamsDropped("draft"),
    DraftAway(),
    DraftKilled(),
    OtherDraft(),
    OrchestratorKilled(),
    VerifierKilled(),
    SecondVerifier(),
)

OF_RANKS = (RankLost("a rank killed", signal.SIGKILL), RankLost("a rank frozen", signal.SIGSTOP))
"""Disturbances of a target that ranks share."""


def disturbances_on(backend: str) -> Sequence[Disturbance]:
    """Return the disturbances that a backend allows. Compiled code has pages of whole blocks of
    sixteen tokens. llama.cpp's pages have one size, and no two sequences share one."""
    if backend == RANKS:
        return [*ALL, *OF_RANKS]
    if backend in (TORCH, CUDA):
        return ALL
    if backend in (COMPILED, GGUF, TWO_VOCABULARIES):
        return [each for each in ALL if not (isinstance(each, PageSize) and each.page_size % 16)]
    return [each for each in ALL if not isinstance(each, PageSize | WarmCache)]
