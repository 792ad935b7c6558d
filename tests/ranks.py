"""A group of ranks: rank 0 is the test's own process, and the others are processes of this module.

::

    test       | load(model) | calls of the backend | load(another) | ... | close()
    other rank | loads it    | follows              | loads it      | ... | ends
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slipstream.engine.model import Backend
from slipstream.engine.sequence import Sequence
from slipstream.engine.torch.parallel.backend import LeadingBackend, follow
from slipstream.engine.torch.parallel.loading import load_part
from slipstream.engine.torch.parallel.rank_group import RankGroup
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from tests.equal_bits import Recorder

START_TIMEOUT = 400.0
STEP_TIMEOUT = 100.0
PAGE_SIZE = 16
_NAME_LENGTH = 512
TEXT_LENGTH = 16
TIE = 1e-3
"""A margin between the two best logits that may explain another token."""


class Ranks:
    """``size`` ranks, all but one of them in processes of their own."""

    def __init__(self, size: int, *, step_timeout: float = STEP_TIMEOUT) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = [sys.executable, "-W", "error", "-m", "tests.ranks", str(step_timeout)]
        self.processes = [subprocess.Popen(command, env=os.environ | common | _rank(rank)) for rank in range(1, size)]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (common | _rank(0)).items():
                patch.setenv(name, value)
            try:
                self.group = RankGroup.join(device="cpu", start_timeout=START_TIMEOUT, step_timeout=step_timeout)
            except BaseException:
                self._kill_others()
                raise
        self._backend: LeadingBackend | None = None

    def load(self, directory: Path, dtype: str, *, exact: bool = True) -> LeadingBackend:
        """Load a model on all ranks, in place of the last one: a target, or a draft."""
        self._end()
        model = f"{dtype}:{'target' if exact else 'draft'}:{directory}"
        self._say(model)
        self._backend = LeadingBackend(_load(self.group, model), self.group)
        return self._backend

    def close(self) -> list[int]:
        """End all ranks. Returns the statuses of the other processes."""
        self._end()
        self._say("")
        self.group.leave()
        return [process.wait(START_TIMEOUT) for process in self.processes]

    def kill(self) -> None:
        """End the other processes at once, also frozen ones."""
        self._kill_others()
        self.group.leave()

    def _kill_others(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def _end(self) -> None:
        if self._backend is not None:
            self._backend.end()
        self._backend = None

    def _say(self, name: str) -> None:
        self.group.send(torch.tensor([ord(letter) for letter in name.ljust(_NAME_LENGTH)]))


def one_rank(directory: Path, dtype: str = "float32") -> PlannedBackend:
    return PlannedBackend(TransformersModel.load(str(directory), device="cpu", dtype=dtype), page_size=16)


def greedy(recorder: Recorder, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Return a greedy text, and the margin of each token."""
    sequence = Sequence("greedy")
    tokens, margins = [*prompt], []
    for _ in range(TEXT_LENGTH):
        logits = recorder.step([(sequence, tokens[len(sequence) :])])[0][-1]
        best = logits.topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
    recorder.engine.cache.release(sequence)
    return tokens[len(prompt) :], margins


def check_texts(recorder: Recorder, backend: PlannedBackend) -> None:
    rng, alone = random.Random(1), Recorder(backend)
    prompt = [rng.randrange(backend.model.vocabulary_size) for _ in range(12)]
    text, margins = greedy(recorder, prompt)
    expected, _ = greedy(alone, prompt)
    first = next((at for at, pair in enumerate(zip(text, expected, strict=True)) if pair[0] != pair[1]), None)
    assert first is None or margins[first] < TIE


def _rank(rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank)}


def _load(group: RankGroup, model: str) -> Backend:
    dtype, role, directory = model.split(":", 2)
    return load_part(directory, group, dtype=dtype, page_size=PAGE_SIZE, exact=role == "target")


def main() -> None:
    """Load and follow what the test loads."""
    torch.set_num_threads(1)
    group = RankGroup.join(device="cpu", start_timeout=START_TIMEOUT, step_timeout=float(sys.argv[1]))
    while model := "".join(map(chr, group.receive(_NAME_LENGTH).tolist())).strip():
        follow(_load(group, model), group)


if __name__ == "__main__":
    main()
