"""Greedy speed over vLLM, beside vLLM alone and vLLM with its own draft model.

All take turns in one run, so that their ratios mean something on any machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.heavy_target import SIZES, build
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.hosting.tokenizer_files import embedded_directory
from suites.vllm.checks import prompts
from suites.vllm.server import ROOT, VllmServer

TARGETS = ("embedded", "130m", "500m")
"""The embedded target, and larger ones that say the same and cost more."""
_COUNT = 100
_TURNS = 5
_DRAFT_LENGTH = 4

Way = Callable[[Sequence[int]], list[int]]


def run() -> dict[str, Any]:
    """Measure all targets."""
    note = (
        f"{_TURNS} greedy texts of up to {_COUNT} tokens, one at a time, in bfloat16; the ways take turns. vLLM's own "
        f"speculation has the embedded draft and {_DRAFT_LENGTH} tokens."
    )
    return {"note": note, "targets": {name: _measure(name) for name in TARGETS}}


def _target(name: str) -> Path:
    if name == "embedded":
        return embedded_directory("target")
    directory = ROOT / "build" / f"heavy-{name}"
    if not directory.exists():
        build(SIZES[name], directory)
    return directory


def _measure(name: str) -> dict[str, Any]:
    target, draft = _target(name), embedded_directory("draft")
    speculative = json.dumps({"model": str(draft), "num_speculative_tokens": _DRAFT_LENGTH, "method": "draft_model"})
    with ExitStack() as stack:
        plain = stack.enter_context(VllmServer(target, dtype="bfloat16"))
        ways: dict[str, Way] = {"vLLM alone": lambda prompt: plain.greedy(prompt, _COUNT)}
        try:
            assisted = stack.enter_context(VllmServer(target, "--speculative-config", speculative, dtype="bfloat16"))
        except RuntimeError as error:
            print(f"vLLM's own draft model: {error}")
        else:
            ways["vLLM with its own draft model"] = lambda prompt: assisted.greedy(prompt, _COUNT)
        flags = ["--engine", "vllm", "--engine-address", plain.url]
        settings = PairSettings(target=str(target), target_flags=flags)
        services = stack.enter_context(LocalServices(settings, report=print))
        client = stack.enter_context(Client(services.orchestrator_address))
        for way, length in (("ours, off", 0), ("ours, on", "adaptive"), ("ours, n-grams", "ngram")):
            ways[way] = _way(client, length)
        return _raced(ways)


def _way(client: Client, length: Any) -> Way:
    if length == "ngram":
        settings = Settings(temperature=0, max_token_count=_COUNT, draft_length="adaptive", proposer="ngram")
    else:
        settings = Settings(temperature=0, max_token_count=_COUNT, draft_length=length)
    return lambda prompt: client.generate(prompt, settings).wait().token_ids


def _raced(ways: dict[str, Way]) -> dict[str, Any]:
    rates: dict[str, list[float]] = {name: [] for name in ways}
    asked = prompts(_TURNS + 1, seed=6)
    for number, prompt in enumerate(asked):
        for name, way in ways.items():
            started = time.monotonic()
            count = len(way(prompt))
            if number:  # the first one warms
                rates[name].append(count / (time.monotonic() - started))
    alone = rates["vLLM alone"]
    return {
        name: {
            "rate": round(median(found), 2),
            "ratio": round(median(one / other for one, other in zip(found, alone, strict=True)), 3),
        }
        for name, found in rates.items()
    }
