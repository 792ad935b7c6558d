"""The hidden states that heads read: those of transformers' own forward, in the order of the
segments, and no bit of the logits differs for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint
from slipstream.engine.engine import Engine
from slipstream.engine.model import Backend, Segment
from slipstream.engine.sequence import Sequence
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.sampling.blocks import in_blocks
from tests import tiny_models

TEXTS = [[*range(20, 31)], [*range(7, 50)], [9, 8, 7]]
LAYERS = (0, 2, 3)


def backend_of(family: str, directory: Path, dtype: str) -> Backend:
    if family == "compiled":
        return load_compiled_checkpoint(str(directory), dtype=dtype, page_size=16, single_rows=False, threads=2)
    return PlannedBackend(TransformersModel.load(str(directory), device="cpu", dtype=dtype))


def save(family: str, directory: Path) -> Path:
    settings = {"head_dim": 32} if family == "compiled" else {}
    model = tiny_models.build("llama" if family == "compiled" else family, num_hidden_layers=4, **settings)
    return tiny_models.save(model, directory)


def logits_of(backend: Backend, rounds: int = 1) -> list[np.ndarray]:
    """The logits of the texts' chunks, two texts at a time."""
    engine = Engine(backend, kv_memory_mib=8)
    found = []
    for _ in range(rounds):
        sequences = [Sequence(str(index)) for index in range(len(TEXTS))]
        for at in range(0, 43, 9):
            segments = []
            for sequence, text in zip(sequences, TEXTS, strict=True):
                if chunk := text[at : at + 9]:
                    engine.cache.extend(sequence, chunk)
                    segments.append(Segment(chunk, at, sequence.pages, min(2, len(chunk))))
            found.append(in_blocks(backend.forward(segments)).floats().copy())
        for sequence in sequences:
            engine.cache.release(sequence)
    return found


@pytest.mark.parametrize("family", ["compiled", "llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hidden_states_are_those_of_transformers(family: str, dtype: str, tmp_path: Path) -> None:
    saved = save(family, tmp_path)
    backend = backend_of(family, saved, dtype)
    assert backend.hidden_states is not None
    assert (backend.hidden_states.hidden_size, backend.hidden_states.layer_count) == (64, 4)
    backend.hidden_states.tap(LAYERS)
    reference = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).eval()
    with torch.inference_mode():
        states = [reference(torch.tensor([text]), output_hidden_states=True).hidden_states for text in TEXTS]
    engine = Engine(backend, kv_memory_mib=8)
    sequences = [Sequence(str(index)) for index in range(len(TEXTS))]
    tolerance = {"float32": 1e-4, "bfloat16": 0.1}[dtype]
    for start, counts in ((0, (5, 40, 1)), (None, (6, 3, 2))):
        segments = []
        for sequence, text, count in zip(sequences, TEXTS, counts, strict=True):
            at = len(sequence) if start is None else start
            engine.cache.extend(sequence, text[at : at + count])
            segments.append(Segment(text[at : at + count], at, sequence.pages, min(2, count)))
        backend.forward(segments)
        tapped, last = backend.hidden_states.tapped(), backend.hidden_states.last()
        expected = [
            torch.cat([state[layer][0, each.start : each.end] for layer in LAYERS], -1)
            for state, each in zip(states, segments, strict=True)
        ]
        assert_near(tapped, torch.cat(expected).numpy(), tolerance)
        ends = [state[-1][0, each.end - each.wanted : each.end] for state, each in zip(states, segments, strict=True)]
        assert_near(last, torch.cat(ends).numpy(), tolerance)


def assert_near(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert len(found) >= len(expected) and found.dtype == np.float32
    assert np.abs(found[: len(expected)] - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("family", ["compiled", "llama", "gpt2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layers", [(), LAYERS])
def test_hidden_states_change_no_bit_of_the_logits(
    family: str, dtype: str, layers: tuple[int, ...], tmp_path: Path
) -> None:
    if family == "gpt2":
        if layers:
            pytest.skip("its layers are named otherwise, and refused")
        saved = tiny_models.save(tiny_models.build("gpt2", n_layer=4), tmp_path)
    else:
        saved = save(family, tmp_path)
    plain = logits_of(backend_of(family, saved, dtype), rounds=6)  # torch has captured the forwards by then
    backend = backend_of(family, saved, dtype)
    assert backend.hidden_states is not None
    backend.hidden_states.tap(layers)
    kept = logits_of(backend, rounds=6)
    assert all(np.array_equal(one.view(np.int32), other.view(np.int32)) for one, other in zip(plain, kept, strict=True))
