"""Compiled forwards: they say what transformers' own classes say, and a row's bits depend on its
own sequence alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from slipstream.engine.compiled import checkpoint_decoder, products
from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.decoder import NotCompiledError
from slipstream.engine.compiled.keeping import made_of
from slipstream.engine.compiled.packing import in_lanes
from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint
from slipstream.engine.compiled_from_transformers import decoder_of
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model import Segment
from slipstream.engine.sequence import PageCopy
from tests import tiny_models
from tests.tensors import forward

_SHAPE: dict[str, Any] = {"head_dim": 32, "num_hidden_layers": 3}
BIASES = {"attention_bias": True, "mlp_bias": True}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "queries share keys": ("llama", _SHAPE),
    "each query has its keys": ("llama", _SHAPE | {"num_key_value_heads": 4}),
    "more queries share keys than a tile has rows": (
        "llama",
        _SHAPE | {"num_attention_heads": 24, "num_key_value_heads": 1, "hidden_size": 96},
    ),
    "biases everywhere": ("llama", _SHAPE | BIASES),
    "one matrix for both ends": ("llama", _SHAPE | {"tie_word_embeddings": True}),
    "a vocabulary that fills no tile": ("llama", _SHAPE | {"vocab_size": 4099}),
    "wide heads": ("llama", _SHAPE | {"head_dim": 96}),
    "heads that fill no tile": ("llama", _SHAPE | BIASES | {"head_dim": 80}),
    "heads that fill no tile, and a window": (
        "mistral",
        _SHAPE | {"head_dim": 48, "sliding_window": tiny_models.WINDOW},
    ),
    "yarn": (
        "llama",
        _SHAPE
        | {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 512,
            }
        },
    ),
    "a sliding window": ("mistral", _SHAPE | {"sliding_window": tiny_models.WINDOW}),
    "biases of queries, keys and values": ("qwen2", _SHAPE),
    "a window in some layers": (
        "qwen2",
        _SHAPE
        | {
            "use_sliding_window": True,
            "sliding_window": tiny_models.WINDOW,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "norms of queries and keys": ("qwen3", _SHAPE),
}
_YARN = SHAPES["yarn"]
LENGTH = 150
PAGES = range(1, 40)
OTHER_PAGES = range(40, 79)


def built(shape: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    family, changes = SHAPES[shape]
    model = tiny_models.build(family, **changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # which begin as zeros
                parameter.normal_(std=0.5)
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model.to(dtype)


def backend_of(model: PreTrainedModel, *, page_size: int = 16, threads: int = 1) -> CompiledBackend:
    backend = CompiledBackend(decoder_of(model, {}), page_size=page_size, single_rows=False, threads=threads)
    backend.reserve(16)
    return backend


def some_tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(tiny_models.VOCABULARY_SIZE) for _ in range(count)]


def whole(backend: CompiledBackend, text: list[int]) -> torch.Tensor:
    return forward(backend, [Segment(text, 0, PAGES, len(text))])


def distance(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """The root of the mean square, relatively."""
    return float((logits - exact).square().mean().sqrt() / exact.square().mean().sqrt())


@torch.inference_mode()
def logits_of(model: PreTrainedModel, text: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    return logits.float()


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_transformers_own(shape: str) -> None:
    model, text = built(shape), some_tokens(LENGTH)
    expected = logits_of(model, text)
    logits = whole(backend_of(model), text)
    assert logits.shape == expected.shape
    assert max(map(distance, logits, expected)) < 2e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_in_bfloat16_they_are_nearer_to_exact_ones_than_transformers_own(shape: str) -> None:
    model, text = built(shape, torch.bfloat16), some_tokens(LENGTH)
    theirs = logits_of(model, text)
    exact = logits_of(built(shape, torch.bfloat16).float(), text)
    assert distance(whole(backend_of(model), text), exact) < distance(theirs, exact) < 0.2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_bits_are_its_own_however_it_is_computed(shape: str, dtype: torch.dtype) -> None:
    rng = random.Random(shape)
    backend, text, other = backend_of(built(shape, dtype)), some_tokens(LENGTH), some_tokens(LENGTH, 1)
    reference = whole(backend, text)
    one_by_one = [forward(backend, [Segment([token], at, PAGES, 1)]) for at, token in enumerate(text)]
    assert torch.equal(torch.cat(one_by_one), reference)
    ours: list[torch.Tensor] = []
    done = others = 0
    while done < LENGTH:  # beside another sequence, in pieces of any size, ours first or last
        count, beside = rng.choice((1, 2, 7, 8, 9, 23)), rng.choice((0, 1, 8, 13))
        segment = Segment(text[done : done + count], done, PAGES, len(text[done : done + count]))
        companion = other[others : others + beside]
        segments = [segment]
        if companion:
            segments.insert(rng.randrange(2), Segment(companion, others, OTHER_PAGES, rng.choice((0, 1))))
        logits = forward(backend, segments)
        first = 0 if segments[0] is segment else segments[0].wanted
        ours.append(logits[first : first + segment.wanted])
        done, others = done + count, others + len(companion)
    assert torch.equal(torch.cat(ours), reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_and_page_sizes_change_no_bit(dtype: torch.dtype) -> None:
    text = some_tokens(LENGTH)
    reference = whole(backend_of(built("queries share keys", dtype)), text)
    for threads, page_size in ((2, 16), (3, 32), (5, 128)):
        backend = backend_of(built("queries share keys", dtype), page_size=page_size, threads=threads)
        pages = range(7, 7 + -(-LENGTH // page_size))
        assert torch.equal(forward(backend, [Segment(text, 0, pages, LENGTH)]), reference)
        again = [
            forward(backend, [Segment(text[at : at + 9], at, pages, len(text[at : at + 9]))])
            for at in range(0, LENGTH, 9)
        ]
        assert torch.equal(torch.cat(again), reference)


def test_long_and_many_sequences_grow_the_memory_that_is_computed_in() -> None:
    backend = backend_of(built("queries share keys"))
    short, text = some_tokens(5), some_tokens(1500)
    before = forward(backend, [Segment(short, 0, OTHER_PAGES, 5)])
    pages = range(1, 100)
    reference = torch.cat(
        [forward(backend, [Segment(text[at : at + 300], at, pages, 300)]) for at in range(0, 1500, 300)]
    )
    assert torch.equal(forward(backend, [Segment(text, 0, pages, 1500)]), reference)
    assert torch.equal(forward(backend, [Segment(short, 0, OTHER_PAGES, 5)]), before)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_wanted_rows_are_answered_in_their_order(shape: str, dtype: torch.dtype) -> None:
    """The last layer computes them alone; what it leaves out changes no bit, and keys and values
    are all there."""
    backend, text, other = backend_of(built(shape, dtype), threads=2), some_tokens(40), some_tokens(30, 1)
    reference = forward(backend, [Segment(text, 0, PAGES, 40)])
    beside = forward(backend, [Segment(other, 0, OTHER_PAGES, 30)])
    follows = forward(backend, [Segment([5], 40, PAGES, 1)])
    for first, second in ((2, 3), (0, 3), (11, 1), (13, 0), (0, 0), (30, 21), (29, 40), (30, 40)):
        backend.erase_pages([*PAGES, *OTHER_PAGES])
        logits = forward(backend, [Segment(other, 0, OTHER_PAGES, first), Segment(text, 0, PAGES, second)])
        assert torch.equal(logits, torch.cat([beside[30 - first :], reference[40 - second :]]))
        assert torch.equal(forward(backend, [Segment([5], 40, PAGES, 1)]), follows)


def test_copied_pages_hold_the_same_and_erased_ones_nothing() -> None:
    backend, text = backend_of(built("queries share keys")), some_tokens(40)
    reference = whole(backend, text)
    backend.copy_pages([PageCopy(page, page + 40) for page in (1, 2, 3)])
    backend.erase_pages([1, 2, 3])
    assert torch.equal(forward(backend, [Segment(text[-1:], 39, range(41, 44), 1)]), reference[-1:])
    assert not torch.equal(forward(backend, [Segment(text[-1:], 39, PAGES, 1)]), reference[-1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_number_stays_none_and_stays_in_its_sequence(dtype: torch.dtype) -> None:
    backend, text = backend_of(built("queries share keys", dtype)), some_tokens(40)
    reference = whole(backend, text)
    backend._memory[:, 41] = 0x7FC0 if dtype == torch.bfloat16 else np.nan
    broken = forward(backend, [Segment(text[16:], 16, [41, 42, 43], 24), Segment(text, 0, PAGES, 40)])
    assert broken[:24].isnan().all()
    assert torch.equal(broken[24:], reference)
    backend.erase_pages([41])
    assert torch.equal(forward(backend, [Segment(text[:16], 0, [41], 16)]), reference[:16])


def test_a_token_that_was_taken_back_leaves_nothing() -> None:
    backend, text = backend_of(built("a sliding window")), some_tokens(60)
    reference = whole(backend, text)
    forward(backend, [Segment(some_tokens(30, 5), 30, PAGES, 1)])  # a proposal that was rejected
    again = [forward(backend, [Segment(text[at : at + 4], at, PAGES, 4)]) for at in range(28, 60, 4)]
    assert torch.equal(torch.cat(again), reference[28:])


@pytest.mark.parametrize("outputs", [32, 40, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_a_matrix_lies_sixteen_outputs_together(outputs: int, dtype: type[np.generic]) -> None:
    matrix = np.arange(outputs * 6).reshape(outputs, 6).astype(dtype)
    packed = in_lanes(matrix)
    at_once = packed.shape[-1]
    assert packed.shape == (-(-outputs // 32) * 2, 6 // at_once, 16, at_once)
    for output in (0, 17, outputs - 1):
        row = packed[output // 16, :, output % 16].flatten()
        assert np.array_equal(row, matrix[output])
    assert not packed.transpose(0, 2, 1, 3).reshape(-1, 6)[outputs:].any()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 16}, "head size 16 is no multiple of 32"),
        ({"head_dim": 40}, "head size 40 is no multiple of 32"),
        ({"hidden_act": "gelu"}, "its activation is gelu"),
        ({"intermediate_size": 100}, "intermediate_size 100"),
    ],
)
def test_a_model_of_another_shape_is_refused_by_what_is_other(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    directory = tiny_models.save(tiny_models.build("llama", **_SHAPE | changes), tmp_path)
    with pytest.raises(NotCompiledError, match=reason):
        load_compiled_checkpoint(str(directory), dtype="float32", page_size=16, single_rows=False, threads=1)


def test_other_architectures_and_pages_are_refused(tmp_path: Path) -> None:
    other = tiny_models.save(tiny_models.build("gemma2"), tmp_path / "gemma2")
    with pytest.raises(NotCompiledError, match="Gemma2ForCausalLM is none of LlamaForCausalLM"):
        load_compiled_checkpoint(str(other), dtype="float32", page_size=16, single_rows=False, threads=1)
    directory = tiny_models.save(tiny_models.build("llama", **_SHAPE), tmp_path / "llama")
    with pytest.raises(NotCompiledError, match="8 tokens, no multiple of 16"):
        load_compiled_checkpoint(str(directory), dtype="float32", page_size=8, single_rows=False, threads=1)
    loaded = load_compiled_checkpoint(str(directory), dtype="float32", page_size=16, single_rows=False, threads=1)
    with pytest.raises(UnsupportedModelError, match=r"kv_memory_mib of 0\.001 holds no page; one takes 0\.0"):
        loaded.reserve(0.001)


def test_logits_that_are_not_the_models_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model has yarn, which our own reader does not know, so transformers reads it."""
    directory = tiny_models.save(tiny_models.build(_YARN[0], **_YARN[1]), tmp_path)
    monkeypatch.setattr(checkpoint_decoder, "alternating", lambda gate, up: np.concatenate([up, gate]))
    with pytest.raises(NotCompiledError, match="off, relatively"):
        load_compiled_checkpoint(str(directory), dtype="float32", page_size=16, single_rows=False, threads=1)


def test_what_is_kept_of_compiled_code_is_of_these_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    before, read = made_of(), Path.read_bytes
    assert before == made_of()
    compiled = {"following", "forward", "lanes", "phases", "quantised", "team", "tiles"}
    for name in {*compiled, "block_types", "byte_dots", "kernel", "processor", "products", "records"}:

        def changed(path: Path, name: str = name) -> bytes:
            return read(path) + (b" " if path.name == f"{name}.py" else b"")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", changed)
            assert made_of() != before, name
    folder = Path(products.__file__).parent
    seen = {
        path.stem for path in folder.glob("*.py") if "@compiled" in path.read_text() or "intrinsic" in path.read_text()
    }
    assert seen == compiled
