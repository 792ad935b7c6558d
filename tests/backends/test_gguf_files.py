"""A GGUF model is all of its files, and all of their keys: each is followed, refused, or left to
llama.cpp by its name."""

from __future__ import annotations

import re
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.decoder import NotCompiledError
from slipstream.engine.compiled.gguf_decoder import GgufDecoder
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.gguf_file import fingerprint_of, shards_of
from slipstream.engine.llamacpp.backend import LlamaCppBackend
from slipstream.engine.llamacpp.gguf_model import GgufModel
from slipstream.engine.model import Segment
from slipstream.hosting import backends
from slipstream.hosting.settings import ModelServiceSettings
from tests import gguf_models
from tests.tensors import forward

TOKENS = [7 + index * 13 % 200 for index in range(40)]


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["slipstream"])


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first of a model's files."""
    return written(tmp_path_factory.mktemp("split") / "model.gguf", "llama", "Q8_0", tensors_per_file=5)


@pytest.fixture
def copied(split: Path, tmp_path: Path) -> Path:
    for file in split.parent.glob("*.gguf"):
        shutil.copy(file, tmp_path)
    return tmp_path / split.name


def written(path: Path, architecture: str, weights: str, **what: Any) -> Path:
    return gguf_models.write(path, architecture, weights, shape=gguf_models.SMALL, **what)


def by_llamacpp(path: Path) -> LlamaCppBackend:
    return LlamaCppBackend(path, threads=1, most_tokens=64, exact=True)


def test_a_split_file_is_all_of_its_files(split: Path) -> None:
    assert [path.name for path in shards_of(split)] == [f"model-{n:05}-of-00004.gguf" for n in range(1, 5)]
    backend = CompiledBackend(GgufDecoder(split, 16), page_size=16, single_rows=False, threads=1)
    backend.reserve(50)
    logits = forward(backend, [Segment(TOKENS, 0, range(1, 4), len(TOKENS))])
    expected = torch.from_numpy(by_llamacpp(split).logits_of(TOKENS))
    assert float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt()) < 0.03


def test_a_matrix_of_another_type_in_a_later_file_is_seen(tmp_path: Path) -> None:
    kinds = {"blk.1.ffn_down": "IQ4_NL"}
    path = written(tmp_path / "model.gguf", "llama", "Q8_0", tensors_per_file=5, kinds=kinds)
    with pytest.raises(UnsupportedModelError, match=r"has weights of type .*iq4_nl; a target's must be"):
        by_llamacpp(path)
    with pytest.raises(NotCompiledError, match="it has matrices of IQ4_NL, which no kernel reads"):
        GgufDecoder(path, 16)


@pytest.mark.parametrize("fingerprint", [lambda path: GgufDecoder(path, 16), GgufModel])
def test_two_models_with_one_first_file_are_two(copied: Path, split: Path, fingerprint: Callable[[Path], Any]) -> None:
    one = fingerprint(split).weights_fingerprint
    assert fingerprint(copied).weights_fingerprint == one
    last = copied.parent / "model-00004-of-00004.gguf"
    content = bytearray(last.read_bytes())
    content[-(len(content) // 2) :: 64] = bytes(len(content[-(len(content) // 2) :: 64]))
    last.write_bytes(content)
    assert copied.read_bytes() == split.read_bytes()
    assert fingerprint(copied).weights_fingerprint != one


def test_a_single_files_fingerprint_stays(split: Path) -> None:
    assert fingerprint_of([split], ["x"]) != fingerprint_of([split, split], ["x"])


@pytest.mark.parametrize("load", [by_llamacpp, lambda path: GgufDecoder(path, 16)])
def test_a_file_that_is_not_there_is_named(copied: Path, load: Callable[[Path], Any]) -> None:
    (copied.parent / "model-00003-of-00004.gguf").unlink()
    with pytest.raises(UnsupportedModelError, match=r"lacks 1 of its 4 files: model-00003-of-00004\.gguf; "):
        load(copied)


@pytest.mark.parametrize("load", [by_llamacpp, lambda path: GgufDecoder(path, 16)])
def test_another_than_the_first_file_is_refused_with_the_first_ones_name(
    copied: Path, load: Callable[[Path], Any]
) -> None:
    with pytest.raises(UnsupportedModelError, match=r"file 2 of 4; give the first, model-00001-of-00004\.gguf"):
        load(copied.parent / "model-00002-of-00004.gguf")


@pytest.mark.parametrize("load", [by_llamacpp, lambda path: GgufDecoder(path, 16)])
def test_a_file_in_anothers_place_is_named(copied: Path, load: Callable[[Path], Any]) -> None:
    shutil.copy(copied.parent / "model-00002-of-00004.gguf", copied.parent / "model-00003-of-00004.gguf")
    with pytest.raises(UnsupportedModelError, match=r"model-00003-of-00004\.gguf says that it is file 2 of 4"):
        load(copied)


def test_a_file_that_is_none_among_them_is_named(copied: Path) -> None:
    (copied.parent / "model-00003-of-00004.gguf").write_bytes(b"hello")
    with pytest.raises(UnsupportedModelError, match=r"model-00003-of-00004\.gguf is not a GGUF file"):
        shards_of(copied)


@pytest.mark.parametrize("load", [by_llamacpp, lambda path: GgufDecoder(path, 16)])
def test_a_first_file_under_another_name_is_refused(copied: Path, load: Callable[[Path], Any]) -> None:
    with pytest.raises((UnsupportedModelError, NotCompiledError), match="split"):
        load(copied.rename(copied.parent / "renamed.gguf"))


def test_a_whole_file_may_have_the_name_of_a_part(tmp_path: Path) -> None:
    path = written(tmp_path / "model-00001-of-00002.gguf", "qwen2", "Q8_0")
    assert shards_of(path) == [path]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.scaling.type", "linear"),
        ("rope.scaling.type", "yarn"),
        ("rope.scaling.factor", 4.0),
        ("rope.scale_linear", 4.0),
        ("rope.scaling.attn_factor", 1.5),
        ("attention.sliding_window", 16),
        ("attention.causal", False),
        ("attention.scale", 0.5),
        ("attention.clamp_kqv", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("attention.logit_softcapping", 30.0),
        ("logit_scale", 8.0),
        ("residual_scale", 0.5),
        ("embedding_scale", 12.0),
        ("final_logit_softcapping", 30.0),
        ("expert_count", 4),
        ("attn_logit_softcapping", 30.0),
        ("a_key_of_next_year", 1.0),
    ],
)
def test_a_key_that_is_not_followed_is_left_to_llama_cpp_by_name(key: str, value: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", "llama", "Q8_0", says={f"llama.{key}": value})
    with pytest.raises(NotCompiledError, match=f"its {key} is"):
        GgufDecoder(path, 16)


def test_keys_that_say_nothing_are_no_fault(tmp_path: Path) -> None:
    says = {
        "general.type": "model",
        "llama.rope.scaling.type": "none",
        "llama.rope.scaling.factor": 1.0,
        "llama.rope.scaling.original_context_length": 512,
        "llama.attention.causal": True,
        "llama.attention.sliding_window": 0,
        "llama.expert_count": 0,
        "llama.expert_used_count": 0,
        "llama.tensor_data_layout": "Meta AI original pth",
        "general.quantization_version": 2,
    }
    GgufDecoder(written(tmp_path / "model.gguf", "llama", "Q8_0", says=says), 16)


def test_blocks_of_another_version_are_left_to_llama_cpp(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", "llama", "Q8_0", says={"general.quantization_version": 3})
    with pytest.raises(NotCompiledError, match=r"general\.quantization_version is 3"):
        GgufDecoder(path, 16)


@pytest.mark.parametrize("load", [by_llamacpp, lambda path: GgufDecoder(path, 16)])
@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_what_is_no_model_is_refused_by_what_it_is(kind: str, load: Callable[[Path], Any], tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", "llama", "Q8_0", says={"general.type": kind})
    with pytest.raises(UnsupportedModelError, match=f"is of general.type {kind!r}, and only a 'model' can be served"):
        load(path)


def test_an_end_token_past_the_vocabulary_is_left_out_by_both_engines(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", "llama", "Q8_0", says={"tokenizer.ggml.eot_token_id": 10**6})
    decoder, model = GgufDecoder(path, 16), GgufModel(path)
    assert 2 in decoder.end_token_ids
    assert decoder.end_token_ids == model.end_token_ids
    assert max(decoder.end_token_ids) < decoder.vocabulary_size


@pytest.mark.parametrize("weights", ["F32", "Q8_0"])
@pytest.mark.parametrize(
    ("architecture", "name", "shape", "expected"),
    [
        ("llama", "token_embd.weight", (4000, 128), [4096, 128]),
        ("llama", "token_embd.weight", (4096, 64), [4096, 128]),
        ("llama", "output_norm.weight", (8,), [128]),
        ("llama", "blk.0.attn_norm.weight", (1,), [128]),
        ("llama", "blk.1.attn_q.weight", (64, 128), [128, 128]),
        ("llama", "blk.1.attn_k.weight", (128, 128), [64, 128]),
        ("llama", "blk.1.attn_v.weight", (64, 64), [64, 128]),
        ("llama", "blk.1.attn_output.weight", (128, 64), [128, 128]),
        ("llama", "blk.1.ffn_gate.weight", (128, 128), [256, 128]),
        ("llama", "blk.1.ffn_up.weight", (128, 128), [256, 128]),
        ("llama", "blk.1.ffn_down.weight", (128, 128), [128, 256]),
        ("llama", "blk.1.ffn_down.weight", (2, 128, 128), [128, 256]),
        ("llama", "rope_freqs.weight", (1,), [16]),
        ("qwen2", "blk.1.attn_k.bias", (32,), [64]),
        ("qwen3", "blk.1.attn_q_norm.weight", (16,), [32]),
    ],
)
def test_a_tensor_of_another_shape_than_the_keys_say_is_named(
    architecture: str, name: str, shape: tuple[int, ...], expected: list[int], weights: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "model.gguf", architecture, weights, odd={name: shape})
    with pytest.raises(NotCompiledError) as refused:
        GgufDecoder(path, 16)
    assert str(refused.value) == f"its {name} is {list(shape)} instead of {expected}"


def test_factors_of_rotary_positions_are_followed(tmp_path: Path) -> None:
    plain, factored = (
        GgufDecoder(written(tmp_path / f"{len(odd)}.gguf", "llama", "Q8_0", odd=odd), 16).frequencies
        for odd in ({}, {"rope_freqs.weight": (16,)})
    )
    assert plain.shape == factored.shape
    assert plain.tolist() != factored.tolist()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.head_count", 0),
        ("attention.head_count_kv", 0),
        ("block_count", 0),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("rope.freq_base", -1.0),
        ("rope.freq_base", float("nan")),
        ("rope.freq_base", [1.0]),
    ],
)
def test_a_number_that_cannot_be_computed_with_is_named(
    key: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said_by_it = written(tmp_path / "model.gguf", "llama", "Q8_0"), GgufDecoder._said
    monkeypatch.setattr(
        GgufDecoder, "_said", lambda self, asked, **how: value if asked == key else said_by_it(self, asked, **how)
    )
    with pytest.raises(NotCompiledError, match=f"its {key} is {re.escape(str(value))}"):
        GgufDecoder(path, 16)


def test_without_llama_cpp_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "model.gguf", "llama", "Q8_0", odd={"output_norm.weight": (8,)})
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    settings = ModelServiceSettings(model=str(path), address="127.0.0.1:0")
    with pytest.raises(UnsupportedModelError, match=r"^.* its output_norm\.weight is \[8\] instead of \[128\].*$"):
        backends.backend_of(settings, str(path), exact=True)


def changed(path: Path, after: bytes, form: str, value: int, skipped: int = 0) -> Path:
    """The file with a number in its header, so many bytes behind the first ``after``."""
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, content.index(after) + len(after) + skipped, value)
    path.write_bytes(content)
    return path


def placed(path: Path, name: str, start: int) -> Path:
    """The file, whose header says that a matrix begins elsewhere."""
    return changed(path, name.encode(), "<Q", start, skipped=4 + 2 * 8 + 4)


@pytest.mark.parametrize("count", [2**40, 2**64 - 1])
@pytest.mark.parametrize("key", ["token_type", "tokens", "merges"])
def test_an_array_that_states_more_than_the_file_holds_is_refused(key: str, count: int, tmp_path: Path) -> None:
    path = changed(written(tmp_path / "model.gguf", "llama", "Q8_0"), f"ggml.{key}".encode(), "<Q", count, skipped=8)
    with pytest.raises(
        UnsupportedModelError, match=r"model\.gguf cannot be read .*: copy, download or convert it again"
    ):
        GgufDecoder(path, 16)


def test_a_truncated_file_is_refused_with_the_tensor_that_is_not_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", "llama", "Q8_0")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UnsupportedModelError, match=r"its blk\.1\.ffn_norm\.weight reaches into the end of the file; "):
        GgufDecoder(path, 16)


@pytest.mark.parametrize("start", [0, 64, 2**40, 2**64 - 32])
def test_a_tensor_that_lies_in_another_or_past_the_end_is_refused(start: int, tmp_path: Path) -> None:
    path = placed(written(tmp_path / "model.gguf", "llama", "Q8_0"), "blk.1.ffn_up.weight", start)
    with pytest.raises(UnsupportedModelError, match=r"is damaged: its .* reaches into .*; copy, download or convert"):
        GgufDecoder(path, 16)


def test_a_tensor_in_two_files_is_refused(copied: Path) -> None:
    last = copied.parent / "model-00004-of-00004.gguf"
    last.write_bytes(last.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight"))
    with pytest.raises(UnsupportedModelError, match=r"has blk\.0\.ffn_up\.weight, which another of its files has too"):
        GgufDecoder(copied, 16)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("block_count", 2**31, "its block_count is 2147483648, more than it has tensors"),
        ("attention.head_count", 2**31, "its attention.key_length is 0"),
    ],
)
def test_a_count_that_would_take_all_memory_is_named(key: str, value: int, said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", "llama", "Q8_0")
    if key == "attention.head_count":  # from which the size of a head follows
        path.write_bytes(path.read_bytes().replace(b"llama.attention.key_length", b"other.attention.key_length"))
    path = changed(path, f"llama.{key}".encode(), "<I", value, skipped=4)
    with pytest.raises(NotCompiledError, match=re.escape(said)):
        GgufDecoder(path, 16)
