"""Measurements of each pair of the target and a draft.

In memory they are found by the draft's address and model, in files by its model alone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator.peers.model_info import ModelInfo
from orchestrator.processes.knowledge_file import KnowledgeFile
from orchestrator.speculation.knowledge import PairKnowledge


class KnownPairs:
    """Measurements of all pairs of one target. Drafts with equal weights share what does not depend
    on their machine."""

    def __init__(
        self, first: PairKnowledge, target: ModelInfo, directory: Path | None, tasks: asyncio.TaskGroup
    ) -> None:
        """``first`` is for the first draft that comes. Tasks of ``tasks`` save measurements in
        ``directory``."""
        self._first = first
        self._first_is_taken = False
        self._target = target
        self._directory = directory
        self._tasks = tasks
        self._known: dict[tuple[str, str], PairKnowledge] = {}
        self._of_weights: dict[str, PairKnowledge] = {}
        """Saved measurements, by the weights of the draft."""

    def start_learning(self) -> None:
        """Begin to measure, before the first turn. If no draft has come until now, the measurements
        are about the target alone."""
        if not self._first_is_taken:
            self._first_is_taken = True
            self._go_on_learning(self._first, None)

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
        self._go_on_learning(pair, draft)
        self._first_is_taken = True
        return pair

    def _go_on_learning(self, pair: PairKnowledge, draft: ModelInfo | None) -> None:
        if self._directory is not None:
            learnt = KnowledgeFile(self._directory, self._target, draft)
            learnt.load(pair, of_the_target=pair is self._first)
            self._tasks.create_task(learnt.save_periodically(pair))
