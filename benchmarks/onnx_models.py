"""The embedded pair for onnxruntime-genai, exported once in float32, because its CPU kernels have
no bfloat16."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.weights import digest_of

LONGEST_PROPOSAL = 16
"""Draft tokens a round: the most that onnxruntime-genai allows, and the best here."""


def export(directory: Path, target: Path, draft: Path) -> tuple[Path, Path]:
    """Return the directories of the target alone and of both models, made in ``directory`` if they
    are missing. This takes half a minute."""
    directory /= digest_of(target, draft)
    alone, both = directory / "target", directory / "speculative"
    if not (both / "genai_config.json").exists():
        for name, source in (("target", target), ("draft", draft)):
            command = [sys.executable, "-W", "ignore", "-m", "onnxruntime_genai.models.builder"]
            places = ["-i", str(source), "-o", str(directory / name), "-c", str(directory / "cache")]
            subprocess.run([*command, *places, "-p", "fp32", "-e", "cpu"], check=True, capture_output=True)
        _join(alone, directory / "draft", both)
    return alone, both


def _join(target: Path, draft: Path, both: Path) -> None:
    """Return one directory with the target and the draft."""
    shutil.copytree(target, both)
    shutil.copytree(draft, both / "draft")
    config = json.loads((target / "genai_config.json").read_text())
    decoder = json.loads((draft / "genai_config.json").read_text())["model"]["decoder"]
    decoder["filename"] = "draft/" + decoder["filename"]
    config["model"] |= {"type": "speculative", "draft": decoder}
    config["speculative"] = {"max_draft_tokens": LONGEST_PROPOSAL}
    (both / "genai_config.json").write_text(json.dumps(config, indent=1))


def generator(directory: Path, temperature: float, max_tokens: int) -> Callable[[Sequence[list[int]]], int]:
    """Return a function that generates after one prompt after another, and returns the number of
    tokens."""
    import onnxruntime_genai as genai

    model: Any = genai.Model(str(directory))
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}

    def generate(prompt: list[int]) -> int:
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(max_length=len(prompt) + max_tokens, **sampling)
        generating = genai.Generator(model, parameters)
        generating.append_tokens(prompt)
        count = 0
        while not generating.is_done():
            generating.generate_next_token()
            count += 1
        return count

    return lambda prompts: sum(map(generate, prompts))
