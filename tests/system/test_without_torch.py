"""The embedded pair is served without torch and transformers, and says the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from slipstream.engine.compiled_from_transformers import load_compiled_by_transformers
from slipstream.engine.model import Segment
from slipstream.hosting.tokenizer_files import embedded_directory
from tests.system.test_installed import TORCH, Installation

PROMPT = list(range(40, 60))
TOKEN_COUNT = 24
PAGES = range(1, 9)

SERVED = f"""
import json, pathlib
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings

with LocalServices(PairSettings()) as services, Client(services.orchestrator_address) as client:
    settings = Settings(temperature=0.0, max_token_count={TOKEN_COUNT})
    ids = client.generate({PROMPT}, settings).wait().token_ids
    maps = [pathlib.Path(f"/proc/{{each.process.pid}}/maps").read_text() for each in services.services.values()]
print(json.dumps([ids, len(maps), sum("libtorch" in each for each in maps)]))
"""


def ids_by_transformers_reading() -> list[int]:
    """The target's greedy tokens, where transformers has read the checkpoint."""
    backend = load_compiled_by_transformers(
        str(embedded_directory("target")), dtype="bfloat16", page_size=16, single_rows=False, threads=1
    )
    backend.reserve(4)
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + TOKEN_COUNT and tokens[-1] not in backend.model.end_token_ids:
        tokens.append(int(backend.forward([Segment(tokens, 0, PAGES, 1)]).argmax()))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("absent", [TORCH, ()], ids=["torch cannot be imported", "torch is installed"])
def test_the_embedded_pair_is_served_without_torch(absent: tuple[str, ...], tmp_path: Path) -> None:
    ended = Installation(tmp_path, absent).run(sys.executable, "-c", SERVED)
    assert ended.returncode == 0, ended.stderr
    ids, service_count, torch_count = json.loads(ended.stdout.splitlines()[-1])
    assert ids == ids_by_transformers_reading()
    assert (service_count, torch_count) == (3, 0)
