"""A file with the measurements of a pair's rounds, which the next start begins with.

There is one file for each pair of weights on each machine. It may be deleted, and it is checked
before use. It changes how soon answers become fast, never the answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import platform
import tempfile
from pathlib import Path

from orchestrator.peers.model_info import ModelInfo
from orchestrator.speculation.kept import NotKeptError, Plain
from orchestrator.speculation.knowledge import PairKnowledge

log = logging.getLogger(__name__)

_FORMAT = 1
_PERIOD_SECONDS = 20.0
_MOST_BYTES = 1_000_000


class KnowledgeFile:
    """File with the measurements of one pair."""

    def __init__(self, directory: Path, target: ModelInfo, draft: ModelInfo | None) -> None:
        weights = [target.weights_fingerprint, draft.weights_fingerprint if draft is not None else ""]
        machine = [platform.node(), platform.machine(), str(os.cpu_count()), target.device, target.dtype]
        self.path = directory / f"{hashlib.sha256(json.dumps([weights, machine]).encode()).hexdigest()[:16]}.json"
        self._failed = False

    def load(self, knowledge: PairKnowledge, *, of_the_target: bool = True) -> bool:
        """Load the file into ``knowledge``; return False if there is no readable file.

        Without ``of_the_target`` only the draft's part is loaded.
        """
        try:
            text = self.path.read_text() if self.path.stat().st_size <= _MOST_BYTES else ""
        except (OSError, UnicodeDecodeError):
            return False
        try:
            kept = json.loads(text)
            if not isinstance(kept, dict) or kept.get("format") != _FORMAT or "knowledge" not in kept:
                raise NotKeptError("it has another format")
            PairKnowledge().take(kept["knowledge"])  # all of it has to be valid
        except (ValueError, RecursionError) as error:
            log.warning("earlier measurements are not used: %s: %s", self.path, error)
            return False
        if of_the_target:
            knowledge.take(kept["knowledge"])
        else:
            knowledge.take_of_the_draft(kept["knowledge"])
        log.info("continuing with earlier measurements: %s", self.path)
        return True

    def save(self, knowledge: PairKnowledge) -> None:
        """Replace the file in one step, so that no process reads half of it. Logs the first failure
        to write."""
        self._write(knowledge.state())

    def _write(self, state: dict[str, Plain]) -> None:
        text = json.dumps({"format": _FORMAT, "knowledge": state})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                dir=self.path.parent
            ) as directory:  # removed in any case, also on a full disk
                whole = Path(directory) / self.path.name
                whole.write_text(text)
                whole.replace(self.path)
        except OSError as error:
            if not self._failed:
                log.warning("measurements cannot be saved: %s", error)
            self._failed = True

    async def save_periodically(self, knowledge: PairKnowledge) -> None:
        """Save regularly and when cancelled, if there are new measurements."""
        seen = 0.0
        try:
            while True:
                await asyncio.sleep(_PERIOD_SECONDS)
                if knowledge.observation_count != seen:
                    seen = knowledge.observation_count
                    await asyncio.to_thread(self._write, knowledge.state())
        finally:
            if knowledge.observation_count != seen:
                self.save(knowledge)
