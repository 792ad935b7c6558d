"""Greedy speed over vLLM, beside vLLM alone and vLLM with its own draft model.

All take turns in one run, so that their ratios mean something on any machine."""

from __future__ import annotations

import json
import random
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
_TURNS = 8
_DRAFT_LENGTH = 4
NOTE = (
    f"{_TURNS} greedy texts of {_COUNT} tokens, one at a time, in bfloat16; the ways take turns in a random order, so only "
    f"ratios mean something. vLLM's own speculation has the embedded draft too, and {_DRAFT_LENGTH} tokens. "
    "vLLM computes with half of the processors."
)

_SPIN_SECONDS = 4.0
"""vLLM's worker looks for work without a pause for a while after its last answer, and takes a
processor. Another server begins later."""

Way = Callable[[Sequence[int]], list[int]]
Ways = dict[str, tuple[VllmServer, Way]]
"""Ways to generate, each with the server that it keeps busy."""


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
        ways: Ways = {"vLLM alone": (plain, _alone(plain))}
        try:
            assisted.wait()
        except RuntimeError as error:
            print(f"vLLM's own draft model: {error}", flush=True)
        else:
            ways["vLLM with its own draft model"] = assisted, _alone(assisted)
        flags = ["--engine", "vllm", "--engine-address", plain.url]
        settings = PairSettings(target=str(target), target_flags=flags)
        services = stack.enter_context(LocalServices(settings, report=print))
        client = stack.enter_context(Client(services.orchestrator_address))
        for way, length in (("ours, off", 0), ("ours, on", "adaptive"), ("ours, n-grams", "ngram")):
            ways[way] = plain, _way(client, length)
        return _raced(ways)


def _alone(server: VllmServer) -> Way:
    return lambda prompt: server.greedy(prompt, _COUNT, ignore_end=True)


def _way(client: Client, length: Any) -> Way:
    settings = Settings(temperature=0, max_token_count=_COUNT, draft_length=length, ignore_end_tokens=True)
    if length == "ngram":
        settings = replace(settings, draft_length="adaptive", proposer="ngram")
    return lambda prompt: client.generate(prompt, settings).wait().token_ids


def _raced(ways: Ways) -> dict[str, Any]:
    rates: dict[str, list[float]] = {name: [] for name in ways}
    asked, draw = prompts(_TURNS + 1, seed=6), random.Random(0)
    busy = None
    for number, prompt in enumerate(asked):
        for name, (server, way) in draw.sample([*ways.items()], len(ways)):
            if server is not busy:
                time.sleep(_SPIN_SECONDS)
            busy = server
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
