"""What is known of each pair of the target and a draft: by the draft's address and model, and kept
between starts by model."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator.peers.model_info import ModelInfo
from orchestrator.processes.knowledge_file import KnowledgeFile
from orchestrator.speculation.knowledge import PairKnowledge


class KnownPairs:
    """The knowledge of all pairs of one target. Drafts of the same weights share what does not
    depend on their machine."""

    def __init__(
        self, first: PairKnowledge, target: ModelInfo, directory: Path | None, tasks: asyncio.TaskGroup
    ) -> None:
        """``first`` is of the first draft that comes. What is learnt is kept in ``directory``, by
        ``tasks``."""
        self._first = first
        self._first_is_taken = False
        self._target = target
        self._directory = directory
        self._tasks = tasks
        self._known: dict[tuple[str, str], PairKnowledge] = {}
        self._of_weights: dict[str, PairKnowledge] = {}
        """One of each model: what is kept."""

    def start_learning(self) -> None:
        """Turns are about to run. If no draft has come until now, what they teach is of the target
        alone."""
        if not self._first_is_taken:
            self._first_is_taken = True
            self._go_on_learning(self._first, None)

    def knowledge_of(self, address: str, draft: ModelInfo) -> PairKnowledge:
        """What is known of the pair with the draft that is at an address now."""
        weights = draft.weights_fingerprint
        if (address, weights) not in self._known:
            self._known[address, weights] = self._new(draft)
        pair = self._known[address, weights]
        pair.processors = draft.processors
        return pair

    def forget(self, address: str) -> None:
        """No draft is at an address any more."""
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
