"""Prompts of a domain that the embedded draft does not know: a program's JSON requests.

The target was trained on questions of people. It answers a request with one sentence of its own,
always the same one for a request, and the draft does not follow it.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path

from training import corpus
from training.dialogues import held_out_question

CLIENTS = ("ide", "web", "bot", "ci")
DEADLINES = (50, 100, 250)


def requests(entries: Sequence[corpus.Entry], seed: int) -> list[str]:
    """Return all requests of the domain, each once, in a random order."""
    made = [
        json.dumps({"id": 17, "client": client, "symbol": entry.symbol, "deadline_ms": deadline, "language": "en"})
        for entry, client, deadline in itertools.product(entries, CLIENTS, DEADLINES)
    ]
    random.Random(seed).shuffle(made)
    return made


def questions(entries: Sequence[corpus.Entry], phrasings: Sequence[str], seed: int) -> list[str]:
    """Return a question about each entry, of the domain that the draft knows."""
    rng = random.Random(seed)
    return [held_out_question(entry, rng.choice(phrasings))[0]["content"] for entry in entries]


def write(path: Path, texts: Sequence[str]) -> None:
    """Write a prompt a line, for `slipstream distill collect`."""
    lines = (json.dumps({"messages": [{"role": "user", "content": text}]}) for text in texts)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
