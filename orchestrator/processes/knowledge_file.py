"""What a pair's rounds have taught, kept in a file between starts: deletable, and never trusted
blindly.

One file for each pair of weights on each machine. It changes how soon an answer is fast, never the
answer.
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
    """Where the knowledge of one pair is kept."""

    def __init__(self, directory: Path, target: ModelInfo, draft: ModelInfo | None) -> None:
        weights = [target.weights_fingerprint, draft.weights_fingerprint if draft is not None else ""]
        machine = [platform.node(), platform.machine(), str(os.cpu_count()), target.device, target.dtype]
        self.path = directory / f"{hashlib.sha256(json.dumps([weights, machine]).encode()).hexdigest()[:16]}.json"
        self._failed = False

    def load(self, knowledge: PairKnowledge, *, of_the_target: bool = True) -> bool:
        """Begin with what the file says, if there is one that can be read: also of the target, or
        of the draft alone."""
        try:
            text = self.path.read_text() if self.path.stat().st_size <= _MOST_BYTES else ""
        except (OSError, UnicodeDecodeError):
            return False
        try:
            kept = json.loads(text)
            if not isinstance(kept, dict) or kept.get("format") != _FORMAT or "knowledge" not in kept:
                raise NotKeptError("of another format")
            PairKnowledge().take(kept["knowledge"])  # as a whole or not at all
        except (ValueError, RecursionError) as error:
            log.warning("what was learnt before is not used: %s: %s", self.path, error)
            return False
        if of_the_target:
            knowledge.take(kept["knowledge"])
        else:
            knowledge.take_of_the_draft(kept["knowledge"])
        log.info("going on with what was learnt before: %s", self.path)
        return True

    def save(self, knowledge: PairKnowledge) -> None:
        """Write what is known; another process never sees half of it. A line in the log, once, if
        it cannot be written."""
        self._write(knowledge.state())

    def _write(self, state: dict[str, Plain]) -> None:
        text = json.dumps({"format": _FORMAT, "knowledge": state})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                dir=self.path.parent
            ) as directory:  # gone whatever happens, a full disk too
                whole = Path(directory) / self.path.name
                whole.write_text(text)
                whole.replace(self.path)
        except OSError as error:
            if not self._failed:
                log.warning("what is learnt cannot be kept: %s", error)
            self._failed = True

    async def save_periodically(self, knowledge: PairKnowledge) -> None:
        """Save now and then, and when cancelled, once anything has been learnt since."""
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
