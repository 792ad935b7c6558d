"""Measurements of each pair of the target and a draft."""

from __future__ import annotations

from orchestrator.peers.model_info import ModelInfo
from orchestrator.speculation.knowledge import PairKnowledge


class KnownPairs:
    """Measurements of all pairs of one target. Drafts with equal weights share what does not depend
    on their machine."""

    def __init__(self, first: PairKnowledge) -> None:
        """``first`` is for the first draft that comes."""
        self._first = first
        self._first_is_taken = False
        self._known: dict[tuple[str, str], PairKnowledge] = {}
        self._of_weights: dict[str, PairKnowledge] = {}
        """The first draft's measurements of each weights."""

    def knowledge_of(self, address: str, draft: ModelInfo) -> PairKnowledge:
        """Return the measurements of the pair with the draft that is now at an address."""
        weights = draft.weights_fingerprint
        if (address, weights) not in self._known:
            self._known[address, weights] = self._new(draft)
        pair = self._known[address, weights]
        pair.processors = draft.processors
        return pair

    def forget(self, address: str) -> None:
        """Drop the measurements of an address that has no draft any more."""
        for at in [known for known in self._known if known[0] == address]:
            del self._known[at]

    def _new(self, draft: ModelInfo) -> PairKnowledge:
        weights = draft.weights_fingerprint
        if weights in self._of_weights:
            return self._first.with_another_draft(self._of_weights[weights])
        pair = self._first.with_another_draft() if self._first_is_taken else self._first
        self._of_weights[weights] = pair
        self._first_is_taken = True
        return pair
