"""What sessions learn together: of each verifier, of each draft, and of the target with any draft
for it. Pure."""

from __future__ import annotations

from collections import defaultdict

from orchestrator.speculation.acceptance import WARMTH_COUNT, AcceptanceEstimate, Calibration
from orchestrator.speculation.budget import VerifyBudget
from orchestrator.speculation.common import CommonWay
from orchestrator.speculation.corrections import Corrections
from orchestrator.speculation.costs import Average, DraftCosts, HitRates, VerifyCosts
from orchestrator.speculation.first_plans import FirstPlans
from orchestrator.speculation.kept import Kept, NotKeptError, Plain
from orchestrator.speculation.load import Loaded
from orchestrator.speculation.plan import Overlap
from slipstream.processors import Processors

_ALL, _APART = tuple(Overlap), (Overlap.NONE,)

_NGRAM_GUESSES = (0.4, 0.5, 0.6, 0.75, 0.9)
"""The longer the agreement, the better."""


class VerifierKnowledge(Loaded):
    """What the sessions that live on one verifier share: its steps, so what is known of them and
    the budget of their tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.costs = VerifyCosts()
        self.budget = VerifyBudget(self.costs)
        self.processors = Processors()
        """That it computes on."""


class PairKnowledge(Loaded, Kept):
    """What all sessions of a pair learn together: those that one draft proposes for, whose rows it
    takes into one step."""

    _OF_THE_WEIGHTS = ("acceptance", "acceptances", "calibrations", "hits")
    _OF_THE_DRAFT = ("drafting", *_OF_THE_WEIGHTS)
    KEPT = (*_OF_THE_DRAFT, "ngram_acceptance")

    def __init__(self) -> None:
        super().__init__()
        self.verifiers: defaultdict[str, VerifierKnowledge] = defaultdict(self._new_verifier)
        """By address."""
        self._verifier_state: Plain | None = None
        self.drafting = DraftCosts()
        self.processors = Processors()
        """That the draft computes on."""
        self.common = CommonWay()
        self.common_apart = CommonWay()
        """Of the sessions that may not overlap (`ways_beside`); all others' is ``common``."""
        self.first_plans = FirstPlans()
        self.turn_length = Average()
        """Tokens that turns generate: what a way needs to get going weighs more the fewer there
        are."""
        self.acceptance = AcceptanceEstimate(0.7, window=2000)
        self.acceptances = [AcceptanceEstimate(self.acceptance, window=2000) for _ in range(WARMTH_COUNT)]
        """By `warmth_of` the temperature; what is observed of one is of all too."""
        self.ngram_acceptance = [AcceptanceEstimate(guess, window=2000) for guess in _NGRAM_GUESSES]
        """Of n-gram proposals, by how long the past agrees with the present."""
        self.calibrations = [Calibration() for _ in range(WARMTH_COUNT)]
        """Likewise."""
        self.hits = HitRates()
        self.corrections = Corrections()
        self._running: set[object] = set()

    def with_another_draft(self, twin: PairKnowledge | None = None) -> PairKnowledge:
        """Of the same target and a draft at another address, or another model at the same one. What
        is known of the verifiers, of n-grams and turns is the same for all. A ``twin``, whose draft
        has the same weights, shares what is known of these too; how fast it is the draft's own, and
        the twin's to begin with."""
        other = PairKnowledge()
        other.verifiers, other.turn_length = self.verifiers, self.turn_length
        other.ngram_acceptance = self.ngram_acceptance
        if twin is not None:
            for name in self._OF_THE_WEIGHTS:
                setattr(other, name, getattr(twin, name))
            other.drafting.take(twin.drafting.state())
        return other

    def ways_beside(self, home: VerifierKnowledge) -> tuple[Overlap, ...]:
        """Ways to draft for a session that lives on a verifier. None overlaps where the two compute
        on the same processors and are short of them: each then takes longer by what the other
        does."""
        return _APART if self.processors.are_short_beside(home.processors) else _ALL

    @property
    def observation_count(self) -> float:
        """Of verifications since this process began."""
        return sum(known.costs.observation_count for known in self.verifiers.values())

    def state(self) -> dict[str, Plain]:
        """What has been learnt, of all verifiers that of the one that has been asked most."""
        costs = [known.costs for known in self.verifiers.values()]
        verifying = max(costs, key=lambda each: each.observation_count, default=VerifyCosts())
        return {**super().state(), "verifying": verifying.state()}

    def take(self, state: Plain) -> None:
        """Begin with what another process has learnt; also of verifiers yet to come. NotKeptError,
        and then nothing of this may be used any more."""
        if not isinstance(state, dict) or "verifying" not in state:
            raise NotKeptError("nothing is said of verifying")
        super().take({name: value for name, value in state.items() if name != "verifying"})
        VerifyCosts().take(state["verifying"])
        self._verifier_state = state["verifying"]
        for known in self.verifiers.values():
            known.costs.take(state["verifying"])

    def _new_verifier(self) -> VerifierKnowledge:
        known = VerifierKnowledge()
        if self._verifier_state is not None:
            known.costs.take(self._verifier_state)
        return known

    def take_of_the_draft(self, state: Plain) -> None:
        """The same of a draft that comes later: what is known of the target by then stays.
        NotKeptError."""
        kept = PairKnowledge()
        kept.take(state)
        for name in self._OF_THE_DRAFT:
            setattr(self, name, getattr(kept, name))

    @property
    def running_count(self) -> int:
        """Sessions whose turns run."""
        return len(self._running)

    def join(self, session: object) -> None:
        """A session's turn has begun."""
        self._running.add(session)

    def leave(self, session: object) -> None:
        """A session's turn has ended, or another draft proposes for it."""
        self._running.discard(session)
