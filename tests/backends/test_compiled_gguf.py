"""GGUF files by compiled code: what llama.cpp says, in bits that depend on a sequence alone; other
models are left to it."""

from __future__ import annotations

import logging
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from benchmarks.llamacpp_models import convert
from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.decoder import NotCompiledError
from slipstream.engine.compiled.gguf_decoder import GgufDecoder
from slipstream.engine.compiled.loading import load_compiled_gguf
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.llamacpp.backend import LlamaCppBackend
from slipstream.engine.model import Segment
from slipstream.hosting.backends import backend_of
from slipstream.hosting.settings import ModelServiceSettings
from slipstream.hosting.tokenizer_files import embedded_directory
from tests import gguf_models
from tests.tensors import forward

LENGTH = 90
PAGES, OTHER_PAGES = range(1, 10), [10]
NEAR = {"F32": 1e-5, "F16": 1e-3, "BF16": 0.05, "Q8_0": 0.03, "Q4_0": 0.03, "Q4_1": 0.03}
"""To llama.cpp's logits. It rounds the inputs of quantised matrices as we do, or in larger blocks,
and adds in another order."""
NEAR_QUANTISED = 0.05

KINDS = ["F32", "BF16", "Q8_0", "qwen2", "qwen3", "llama"]
"""The embedded target by its weights' type, or wide layers by their architecture, queries sharing
their keys."""
SMALL = {
    **{each: (each, {}) for each in ("F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")},
    "a mixture": ("Q4_K", dict.fromkeys(("token_embd", "blk.0.attn_v", "blk.0.ffn_down", "blk.1.ffn_up"), "Q6_K")),
    "numbers too": ("Q4_1", {"token_embd": "F16", "blk.0.attn_k": "BF16", "blk.1.attn_output": "F32"}),
}
"""Types of small layers, and of some matrices if not all are of one."""


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings read a service's command line, and here it would be pytest's."""
    monkeypatch.setattr(sys, "argv", ["slipstream"])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """A file of a kind, and its weights' type."""
    directory = tmp_path_factory.mktemp("gguf")

    def made(kind: str) -> tuple[Path, str]:
        path = directory / kind / "model.gguf"
        if kind in SMALL:
            weights, kinds = SMALL[kind]
            # Rows are whole groups of 256.
            shape = gguf_models.SMALL_K if weights.endswith("_K") else gguf_models.SMALL
            is_made = path.exists()
            return (path if is_made else gguf_models.write(path, "llama", weights, kinds=kinds, shape=shape)), kind
        if kind[0].isupper():
            return (path if path.exists() else convert(embedded_directory("target"), path, kind)), kind
        weights = {"qwen2": "BF16", "qwen3": "Q8_0", "llama": "F32"}[kind]
        path.parent.mkdir(exist_ok=True)
        return (path if path.exists() else gguf_models.write(path, kind, weights)), weights

    return made


def compiled_of(path: Path, *, page_size: int = 16, threads: int = 1) -> CompiledBackend:
    backend = CompiledBackend(GgufDecoder(path, page_size), page_size=page_size, single_rows=False, threads=threads)
    backend.reserve(50)
    return backend


def some_tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 250) for _ in range(count)]


def distance(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The root of the mean square, relatively."""
    return float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt())


@pytest.mark.parametrize("kind", [*KINDS, *SMALL])
def test_logits_are_llama_cpps_own(file: Callable[[str], tuple[Path, str]], kind: str) -> None:
    path, weights = file(kind)
    text = some_tokens(LENGTH)
    expected = torch.from_numpy(LlamaCppBackend(path, threads=1, most_tokens=256, exact=False).logits_of(text))
    logits = forward(compiled_of(path), [Segment(text, 0, PAGES, LENGTH)])
    assert logits.shape == expected.shape
    assert distance(logits, expected) < NEAR.get(weights, NEAR_QUANTISED)


@pytest.mark.parametrize("kind", ["Q8_0", "qwen3", *SMALL])
def test_a_rows_bits_are_its_own_however_it_is_computed(file: Callable[[str], tuple[Path, str]], kind: str) -> None:
    rng = random.Random(kind)
    path, _ = file(kind)
    backend, text, other = compiled_of(path), some_tokens(LENGTH), some_tokens(LENGTH, 1)
    reference = forward(backend, [Segment(text, 0, PAGES, LENGTH)])
    one_by_one = [forward(backend, [Segment([token], at, PAGES, 1)]) for at, token in enumerate(text)]
    assert torch.equal(torch.cat(one_by_one), reference)
    for threads, page_size in ((2, 16), (3, 128)):
        again = compiled_of(path, page_size=page_size, threads=threads)
        ours: list[torch.Tensor] = []
        done = 0
        while done < LENGTH:  # beside another sequence, in pieces of any size
            piece = text[done : done + rng.choice((1, 2, 8, 9, 23))]
            beside = Segment(other[: rng.choice((1, 8, 13))], 0, OTHER_PAGES, 0)
            ours.append(forward(again, [beside, Segment(piece, done, PAGES, len(piece))]))
            done += len(piece)
        assert torch.equal(torch.cat(ours), reference)


@pytest.mark.parametrize(
    "kinds",
    [
        {"output": "Q6_K"},
        {"token_embd": "F16", "output": "Q4_K"},
        {"token_embd": "BF16", "output": "Q4_K"},
        {"token_embd": "BF16"},
    ],
)
def test_an_embedding_of_another_type_than_most_matrices_is_read(tmp_path: Path, kinds: dict[str, str]) -> None:
    path = tmp_path / "model.gguf"
    gguf_models.write(path, "llama", "Q4_1", kinds=kinds, shape=gguf_models.SMALL_K)
    text = some_tokens(LENGTH)
    expected = torch.from_numpy(LlamaCppBackend(path, threads=1, most_tokens=256, exact=False).logits_of(text))
    logits = forward(compiled_of(path), [Segment(text, 0, PAGES, LENGTH)])
    assert distance(logits, expected) < NEAR_QUANTISED


def test_what_is_no_number_stays_none_and_stays_in_its_sequence(file: Callable[[str], tuple[Path, str]]) -> None:
    backend, text = compiled_of(file("Q8_0")[0]), some_tokens(40)
    reference = forward(backend, [Segment(text, 0, PAGES, 40)])
    backend._memory[:, 21] = torch.nan
    broken = forward(backend, [Segment(text[16:], 16, [21, 22, 23], 24), Segment(text, 0, PAGES, 40)])
    assert broken[:24].isnan().all()
    assert torch.equal(broken[24:], reference)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights": "IQ4_NL"}, "it has matrices of IQ4_NL, which no kernel reads"),
        ({"architecture": "gemma"}, "its architecture is gemma, none of llama, qwen2, qwen3"),
        ({"page_size": 8}, "its pages are to have 8 tokens, no multiple of 16"),
    ],
)
def test_what_another_backend_has_to_serve_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    path = gguf_models.write(tmp_path / "model.gguf", "llama", changes.get("weights", "Q8_0"), shape=gguf_models.SMALL)
    if "architecture" in changes:
        said_by_it = GgufDecoder._said
        monkeypatch.setattr(
            GgufDecoder,
            "_said",
            lambda self, key, **how: (
                changes["architecture"] if key.endswith("architecture") else said_by_it(self, key, **how)
            ),
        )
    with pytest.raises(NotCompiledError) as refused:
        GgufDecoder(path, changes.get("page_size", 16))
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.dimension_count", 16),
        ("attention.layer_norm_rms_epsilon", None),
        ("feed_forward_length", [1, 2]),
    ],
)
def test_so_does_what_would_be_computed_otherwise(
    file: Callable[[str], tuple[Path, str]], monkeypatch: pytest.MonkeyPatch, key: str, value: Any
) -> None:
    said_by_it = GgufDecoder._said
    monkeypatch.setattr(
        GgufDecoder, "_said", lambda self, asked, **how: value if asked == key else said_by_it(self, asked, **how)
    )
    with pytest.raises(NotCompiledError):
        GgufDecoder(file("Q8_0")[0], 16)


def test_logits_that_are_not_the_files_are_noticed(file: Callable[[str], tuple[Path, str]]) -> None:
    with pytest.raises(NotCompiledError, match=r"its logits would be .* off, relatively"):
        load_compiled_gguf(
            file("Q8_0")[0],
            page_size=16,
            single_rows=False,
            threads=1,
            reference=lambda tokens: np.ones((len(tokens), 4096), np.float32),
        )


def test_without_the_extra_it_is_left_to_who_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gguf_decoder", "gguf_matrix", "gguf_tensors"):  # what imports it, imported again
        monkeypatch.delitem(sys.modules, f"slipstream.engine.compiled.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(NotCompiledError, match="gguf is not installed"):
        load_compiled_gguf(
            Path("a.gguf"),
            page_size=16,
            single_rows=False,
            threads=1,
            reference=lambda tokens: np.empty((0, 0), np.float32),
        )


@pytest.mark.parametrize(("engine", "served"), [("auto", CompiledBackend), ("llamacpp", LlamaCppBackend)])
def test_auto_computes_what_it_can_and_llama_cpp_what_it_is_asked(
    file: Callable[[str], tuple[Path, str]], engine: Any, served: type
) -> None:
    path, _ = file("Q8_0")
    settings = ModelServiceSettings(model=str(path), address="127.0.0.1:0", engine=engine)
    backend = backend_of(settings, str(path), exact=True)
    assert isinstance(backend, served)
    assert (backend.model.dtype, backend.model.end_token_ids) == ("q8_0", (0, 2))


@pytest.mark.parametrize(
    ("weights", "engine", "said"),
    [
        ("Q8_0", "torch", "--engine torch serves checkpoints, and .* is a .gguf file"),
        ("IQ4_NL", "compiled", "cannot be computed by --engine compiled: it has matrices of IQ4_NL"),
    ],
)
def test_an_engine_that_cannot_is_refused(tmp_path: Path, weights: str, engine: Any, said: str) -> None:
    path = gguf_models.write(tmp_path / "model.gguf", "llama", weights, shape=gguf_models.SMALL)
    settings = ModelServiceSettings(model=str(path), address="127.0.0.1:0", engine=engine)
    with pytest.raises(UnsupportedModelError, match=said):
        backend_of(settings, str(path), exact=False)


def test_a_checkpoint_is_not_llama_cpps() -> None:
    settings = ModelServiceSettings(model="embedded", address="127.0.0.1:0", engine="llamacpp")
    with pytest.raises(
        UnsupportedModelError, match=r"--engine llamacpp serves only \.gguf files, and embedded is not one"
    ):
        backend_of(settings, "embedded", exact=False)


@pytest.mark.parametrize(("weights", "kind"), [("IQ4_NL", "qwen3"), ("Q3_K", "llama"), ("Q2_K", "qwen2")])
def test_a_target_of_another_type_is_dequantised(
    tmp_path: Path, weights: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "model.gguf"
    gguf_models.write(path, kind, weights, shape=gguf_models.SMALL_K)
    tokens = some_tokens(LENGTH)
    llamacpp = LlamaCppBackend(path, threads=1, most_tokens=LENGTH, exact=False)
    expected = torch.from_numpy(llamacpp.logits_of(tokens))
    for dtype, near in (("float32", 0.05), ("bfloat16", 0.08)):
        settings = ModelServiceSettings(model=str(path), address="127.0.0.1:0", dtype=dtype)
        backend = backend_of(settings, str(path), exact=True)
        assert isinstance(backend, CompiledBackend)
        assert backend.model.dtype == dtype
        backend.reserve(50)
        assert distance(forward(backend, [Segment(tokens, 0, PAGES, LENGTH)]), expected) < near
    lines = [record.getMessage() for record in caplog.records if "dequantised" in record.getMessage()]
    assert re.search(rf"is dequantised from .*{weights}.* to float32: its weights take \d+ MiB of memory", lines[0])


def test_dequantised_weights_are_computed_with_as_a_file_that_holds_them(tmp_path: Path) -> None:
    packed, plain = tmp_path / "packed.gguf", tmp_path / "plain.gguf"
    gguf_models.write(packed, "llama", "IQ4_NL", shape=gguf_models.SMALL)
    _write_dequantised(packed, plain)
    tokens = some_tokens(LENGTH)
    logits = []
    for path, dtype in ((packed, "float32"), (plain, None)):
        backend = CompiledBackend(GgufDecoder(path, 16, dtype), page_size=16, single_rows=False, threads=1)
        backend.reserve(50)
        logits.append(forward(backend, [Segment(tokens, 0, PAGES, LENGTH)]))
    assert torch.equal(*logits)


def _write_dequantised(packed: Path, plain: Path) -> None:
    reader: Any = gguf.GGUFReader(packed)
    writer: Any = gguf.GGUFWriter(str(plain), "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kinds = field.types
            writer.add_key_value(name, field.contents(), kinds[0], sub_type=kinds[-1] if len(kinds) > 1 else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
