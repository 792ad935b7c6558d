"""The compared systems: Slipstream, and what a user would take instead. Each answers the same
questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks import llamacpp_models, onnx_models
from slipstream.client import Client, Result, Settings

Prompts = Sequence[list[int]]

ROUND_PARTS = ("draft", "verify", "queue", "network", "orchestrator")
"""Parts of a round's time, as results name them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that hold for every system."""

    temperature: float
    max_tokens: int
    """Most tokens of an answer."""
    streams: int
    """Questions at a time."""


@dataclass
class System:
    """One row of the comparison: how it answers prompts, and its results."""

    name: str
    temperature: float
    answer: Callable[[Prompts], int]
    """Function that generates after each prompt and returns the number of tokens."""
    rates: list[float] = field(default_factory=list)
    """Tokens/s of each repetition."""
    results: list[Result] = field(default_factory=list)

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens that were accepted, if there were any."""
        drafted = sum(result.draft_token_count for result in self.results)
        return sum(result.accepted_token_count for result in self.results) / drafted if drafted else None

    @property
    def round_milliseconds(self) -> list[float]:
        """Return the mean over rounds of each of `ROUND_PARTS`, in milliseconds; empty if there
        were no rounds."""
        rounds = sum(result.round_count for result in self.results)
        if not rounds:
            return []
        return [sum(getattr(result, f"{part}_time") for result in self.results) / rounds * 1e3 for part in ROUND_PARTS]


def transformers_systems(
    limits: Limits, target_directory: Path, draft_directory: Path, dtype: str, device: str = "cpu"
) -> list[System]:
    """Return ``generate`` on the target alone, with the draft as ``assistant_model``, and with
    prompt lookup. The last two take only one question at a time."""
    target, draft = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).to(device).eval()
        for directory in (target_directory, draft_directory)
    )
    temperature = limits.temperature
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    end = target.generation_config.eos_token_id
    ends = set(end if isinstance(end, list) else [end])

    def generate(prompts: Prompts, **options: object) -> int:
        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        ids = torch.tensor([[0] * count + prompt for count, prompt in zip(padding, prompts, strict=True)]).to(device)
        mask = torch.tensor([[0] * count + [1] * (longest - count) for count in padding]).to(device)
        output = target.generate(ids, attention_mask=mask, max_new_tokens=limits.max_tokens, **sampling, **options)
        return sum(_length(row, ends) for row in output[:, longest:].tolist())

    def one_by_one(**options: object) -> Callable[[Prompts], int]:
        return lambda prompts: sum(generate([prompt], **options) for prompt in prompts)

    def in_batches(prompts: Prompts) -> int:
        starts = range(0, len(prompts), limits.streams)
        return sum(generate(prompts[start : start + limits.streams]) for start in starts)

    return [
        System("transformers", temperature, in_batches),
        System("transformers assisted", temperature, one_by_one(assistant_model=draft)),
        System("transformers prompt lookup", temperature, one_by_one(prompt_lookup_num_tokens=10)),
    ]


def _length(row: Sequence[int], ends: set[int]) -> int:
    """Return the tokens of a row up to and including its end token. The rest is padding."""
    return next((index for index, token in enumerate(row, 1) if token in ends), len(row))


def onnxruntime_systems(limits: Limits, directories: tuple[Path, Path]) -> list[System]:
    """Return onnxruntime-genai, plain and speculative, which runs target and draft in one process
    and takes one question at a time."""
    names = ("onnxruntime-genai", "onnxruntime-genai speculative")
    return [
        System(name, limits.temperature, onnx_models.generator(directory, limits.temperature, limits.max_tokens))
        for name, directory in zip(names, directories, strict=True)
    ]


def llamacpp_systems(
    limits: Limits, target: Path, draft: Path, draft_lengths: Sequence[int], server: Path | None = None
) -> list[System]:
    """Return llama.cpp, plain and with drafts of these lengths. ``target`` and ``draft`` are GGUF
    files; ``server`` is a llama-server other than the wheel's."""
    plain = llamacpp_models.Settings(target, None, 0, limits.temperature, limits.max_tokens, limits.streams, server)
    systems = [System("llama.cpp", limits.temperature, llamacpp_models.generator(plain))]
    for length in draft_lengths:
        speculative = replace(plain, draft=draft, draft_length=length)
        name = f"llama.cpp speculative, at most {length}"
        systems.append(System(name, limits.temperature, llamacpp_models.generator(speculative)))
    return systems


MODES: dict[str, Settings] = {
    "off": Settings(draft_length=0),
    "adaptive": Settings(draft_length="adaptive"),
    "draft": Settings(draft_length="adaptive", proposer="draft"),
    "n-gram": Settings(draft_length="adaptive", proposer="ngram"),
}


def slipstream_systems(
    client: Client, limits: Limits, modes: Sequence[str], draft_lengths: Sequence[int]
) -> list[System]:
    """Return Slipstream over gRPC: without speculation, in ``modes`` of `MODES`, and with proposals
    of these lengths."""
    chosen = {name: mode for name, mode in MODES.items() if name in ("off", *modes)}
    chosen |= {f"K={length}": Settings(draft_length=length) for length in draft_lengths}
    return [slipstream_system(client, f"Slipstream {name}", limits, mode) for name, mode in chosen.items()]


def slipstream_system(client: Client, name: str, limits: Limits, mode: Settings) -> System:
    """Return Slipstream over gRPC."""
    settings = replace(mode, temperature=limits.temperature, seed=0, max_token_count=limits.max_tokens)
    pool = ThreadPoolExecutor(limits.streams)
    system = System(name, limits.temperature, lambda prompts: 0)

    def answer(prompts: Prompts) -> int:
        results = list(pool.map(lambda prompt: client.generate(prompt, settings).wait(), prompts))
        system.results += results
        return sum(result.generated_token_count for result in results)

    system.answer = answer
    return system
