"""Checks of the verifier with a real vLLM server behind it. Each returns whether it holds, and what
it has seen."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, AutoTokenizer

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.hosting.tokenizer_files import embedded_directory
from suites.vllm.server import VllmServer
from training import corpus
from training.dialogues import QUESTION_PHRASINGS

COUNT = 48
PROMPTS = 40
_FEW = 10
"""Texts with tensor parallel 2, whose workers wait for each other on the same processors."""
LEAST_P = 1e-3
"""Odds of a false alarm."""
_DRAWS = 1000
_TEMPERATURE = 0.8
_HOT = 1.5
"""A temperature at which most tokens take more than one question."""
_LEAST_EXPECTED = 5.0
_STREAMS = 4

Found = dict[str, Any]


def run() -> dict[str, Found]:
    """Run all checks. Returns what each has found, by what it checks."""
    found: dict[str, Found] = {}
    target = embedded_directory("target")
    with VllmServer(target) as server, _services(server) as services, _client(services) as client:
        found["server"] = {"holds": True, "says": client.server_info().target.caveats[0]}
        found["greedy texts equal vLLM's own, off, fixed and on"] = _greedy(client, server)
        for temperature in (_TEMPERATURE, _HOT):
            found[f"texts at T = {temperature:g} are the same, off, fixed and on"] = _sampled(client, temperature)
        found["draws at T = 0.8 follow the exact distribution"] = _distribution(client)
        found["the draft is killed: same text"] = _killed(client, server, services.services["draft"].process.kill)
        found["vLLM is killed and started again: same text"] = _killed(client, server, server.restart)
    with (
        VllmServer(target, "--tensor-parallel-size", "2") as server,
        _services(server) as services,
        _client(services) as client,
    ):
        found["greedy texts equal vLLM's own with tensor parallel 2"] = _greedy(client, server, _FEW)
    return found


def _client(services: LocalServices) -> Client:
    return Client(services.orchestrator_address)


def _services(server: VllmServer) -> LocalServices:
    flags = ["--engine", "vllm", "--engine-address", server.url]
    patience = ["--verifier-patience-seconds", "300"]  # vLLM takes a minute to start
    return LocalServices(PairSettings(target_flags=flags, orchestrator_flags=patience), report=print)


def prompts(count: int, seed: int = 3) -> list[list[int]]:
    """Questions that the embedded pair was trained on, under its chat template."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("target"))
    rng = random.Random(seed)
    entries = rng.sample(corpus.read(embedded_directory("target").parent / "symbols.jsonl"), count)
    chats = [
        f"<|im_start|>user\n{rng.choice(QUESTION_PHRASINGS).format(entry.symbol)}<|im_end|>\n<|im_start|>assistant\n"
        for entry in entries
    ]
    return [tokenizer.encode(chat, add_special_tokens=False) for chat in chats]


def _answers(client: Client, asked: Sequence[list[int]], settings: Callable[[int], Settings]) -> list[list[int]]:
    with ThreadPoolExecutor(_STREAMS) as pool:
        return [*pool.map(lambda each: client.generate(each[1], settings(each[0])).wait().token_ids, enumerate(asked))]


def _greedy(client: Client, server: VllmServer, count: int = PROMPTS) -> Found:
    asked = prompts(count)
    own = [server.greedy(prompt, COUNT) for prompt in asked]
    differing = {}
    for length in (0, 4, "adaptive"):
        got = _answers(client, asked, lambda _, length=length: _settings(0.0, 0, length))  # type: ignore[misc]
        differing[str(length)] = sum(one != other for one, other in zip(got, own, strict=True))
    return {"holds": not any(differing.values()), "texts": count, "differing": differing}


def _sampled(client: Client, temperature: float) -> Found:
    asked = prompts(PROMPTS)
    got = [
        _answers(client, asked, lambda seed, length=length: _settings(temperature, seed, length))  # type: ignore[misc]
        for length in (0, 4, "adaptive")
    ]
    differing = sum(len({*map(tuple, texts)}) > 1 for texts in zip(*got, strict=True))
    return {"holds": not differing, "texts": PROMPTS, "differing": differing}


def _settings(temperature: float, seed: int, draft_length: Any) -> Settings:
    return Settings(temperature=temperature, seed=seed, max_token_count=COUNT, draft_length=draft_length)


def _distribution(client: Client) -> Found:
    """Compare pairs of tokens with the exact odds of transformers in float32. The second token of a
    pair is mostly drawn in a step with a hint."""
    model = AutoModelForCausalLM.from_pretrained(embedded_directory("target"), dtype=torch.float32).eval()

    def odds(tokens: list[int]) -> list[float]:
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, -1].double()
        found: list[float] = torch.softmax(logits / _TEMPERATURE, 0).tolist()
        return found

    cut = [prompt[:length] for prompt in prompts(8, seed=8) for length in range(3, len(prompt))]
    prompt = min(cut, key=lambda tokens: max(odds(tokens)))  # the least certain one
    first = odds(prompt)
    likely = sorted(range(len(first)), key=lambda token: -first[token])[:20]
    expected = {
        (one, two): chance * _DRAWS
        for one in likely
        for two, after in enumerate(odds([*prompt, one]))
        if (chance := first[one] * after) * _DRAWS >= _LEAST_EXPECTED
    }
    settings = [
        Settings(temperature=_TEMPERATURE, seed=seed, max_token_count=2, draft_length=4, ignore_end_tokens=True)
        for seed in range(_DRAWS)
    ]
    drawn = Counter(tuple(tokens) for tokens in _answers(client, [prompt] * _DRAWS, settings.__getitem__))
    rest = _DRAWS - sum(expected.values())
    seen = [drawn[pair] for pair in expected]
    p_value = float(chisquare([*seen, _DRAWS - sum(seen)], [*expected.values(), rest]).pvalue)
    return {"holds": p_value > LEAST_P, "draws": _DRAWS, "bins": len(expected) + 1, "p": round(p_value, 4)}


def _killed(client: Client, server: VllmServer, kill: Callable[[], object]) -> Found:
    """Generate texts one after the other, and kill something while the second one runs."""
    asked = prompts(6, seed=5)
    settings = Settings(temperature=0, max_token_count=200, draft_length=4, ignore_end_tokens=True)
    before = [client.generate(prompt, settings).wait().token_ids for prompt in asked]
    timer = threading.Timer(0.3, kill)
    started = time.monotonic()
    timer.start()
    after = [client.generate(prompt, settings).wait().token_ids for prompt in asked]
    seconds = time.monotonic() - started
    timer.join()
    server.wait()
    differing = sum(one != other for one, other in zip(before, after, strict=True))
    return {"holds": not differing, "texts": len(asked), "differing": differing, "seconds": round(seconds, 1)}
