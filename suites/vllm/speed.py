"""Greedy speed over vLLM, beside vLLM alone and vLLM with its own draft model.

All take turns in one run, so that their ratios mean something on any machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
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
_COUNT = 40
_TURNS = 4
_DRAFT_LENGTH = 4
NOTE = (
    f"{_TURNS} greedy texts of {_COUNT} tokens, one at a time, in bfloat16; the ways take turns in one run, so only ratios "
    f"mean something. vLLM's own speculation has the embedded draft too, and {_DRAFT_LENGTH} tokens."
)

Way = Callable[[Sequence[int]], list[int]]


def _target(name: str) -> Path:
    if name == "embedded":
        return embedded_directory("target")
    directory = ROOT / "build" / f"heavy-{name}"
    if not directory.exists():
        build(SIZES[name], directory)
    return directory


def measure(name: str) -> dict[str, Any]:
    """Return the rate of each way with a target, and its ratio to vLLM alone."""
    target, draft = _target(name), embedded_directory("draft")
    speculative = json.dumps({"model": str(draft), "num_speculative_tokens": _DRAFT_LENGTH, "method": "draft_model"})
    with ExitStack() as stack:
        plain = VllmServer(target, dtype="bfloat16")
        assisted = VllmServer(target, "--speculative-config", speculative, dtype="bfloat16")
        for server in (plain, assisted):
            stack.callback(server.kill)
            server.begin()
        plain.wait()
        ways: dict[str, Way] = {"vLLM alone": lambda prompt: plain.greedy(prompt, _COUNT, ignore_end=True)}
        try:
            assisted.wait()
        except RuntimeError as error:
            print(f"vLLM's own draft model: {error}", flush=True)
        else:
            ways["vLLM with its own draft model"] = lambda prompt: assisted.greedy(prompt, _COUNT, ignore_end=True)
        flags = ["--engine", "vllm", "--engine-address", plain.url]
        settings = PairSettings(target=str(target), target_flags=flags)
        services = stack.enter_context(LocalServices(settings, report=print))
        client = stack.enter_context(Client(services.orchestrator_address))
        for way, length in (("ours, off", 0), ("ours, on", "adaptive"), ("ours, n-grams", "ngram")):
            ways[way] = _way(client, length)
        return _raced(ways)


def _way(client: Client, length: Any) -> Way:
    settings = Settings(temperature=0, max_token_count=_COUNT, draft_length=length, ignore_end_tokens=True)
    if length == "ngram":
        settings = replace(settings, draft_length="adaptive", proposer="ngram")
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
