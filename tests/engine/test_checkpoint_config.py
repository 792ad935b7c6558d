"""Our own reader of config.json and safetensors, against transformers: the same frequencies,
shapes, fingerprints and weights."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from slipstream.engine import compiled_from_transformers
from slipstream.engine.checkpoint import _is_scaled, refuse_without_torch
from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.checkpoint_config import CheckpointConfig, UnknownConfigError
from slipstream.engine.compiled.checkpoint_decoder import CheckpointDecoder
from slipstream.engine.compiled.frequencies import inverse_frequencies
from slipstream.engine.compiled.loading import load_compiled
from slipstream.engine.compiled.processor import VECTORS
from slipstream.engine.compiled.safetensors_file import StoredTensor, rounded, stored_tensors
from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint
from slipstream.engine.compiled_from_transformers import load_compiled_by_transformers
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model_fingerprint import NOT_IN_LOGITS
from slipstream.engine.pretrained.loading import load_pretrained
from slipstream.engine.torch.transformers_model import TransformersModel
from tests import tiny_models
from tests.vector_lanes import SAME_LANES

BASES = [10_000.0, 500_000.0, 1_000_000.0, 100_000.0, 130_000.0, 150_000.0, 5_000_000.0, 10_000, 1234.5, 77_777.7]
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "older names": {"rope_parameters": None, "rope_theta": 5000, "rope_scaling": None},
    "linear": {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 1e5},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "who made it": {
        "unsloth_version": "2024.9",
        "tokenizer_class": "GPT2Tokenizer",
        "transformers.js_config": {"a": 1},
    },
    "SmolLM2's keys": {"is_llama_config": True, "rope_interleaved": False, "torch_dtype": "bfloat16"},
    "Qwen2.5's keys": {"use_mrope": False},
    "how to generate": {"do_sample": True, "temperature": 0.5, "use_cache": False, "eos_token_id": [5, 6]},
}
WITH_WINDOWS = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}


def change(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@SAME_LANES
@pytest.mark.parametrize("base", BASES)
def test_frequencies_have_torchs_bits(base: float) -> None:
    for size in (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256):
        expected = 1.0 / (base ** (torch.arange(0, size, 2, dtype=torch.int64).to(dtype=torch.float) / size))
        assert np.array_equal(inverse_frequencies(base, size), expected.numpy()), size


@pytest.mark.parametrize("base", BASES)
def test_frequencies_are_near_those_of_numbers_with_more_bits(base: float) -> None:
    for size in (16, 96, 128, 256):
        exact = np.float64(base) ** -(np.arange(0, size, 2) / size)
        assert np.allclose(inverse_frequencies(base, size), exact, rtol=2e-6, atol=0), size


def test_vector_instructions_have_torchs_name() -> None:
    assert torch.backends.cpu.get_cpu_capability() == VECTORS


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_checkpoint_is_read_as_transformers_reads_it(family: str, case: str, tmp_path: Path) -> None:
    changes = CHANGES[case] | (WITH_WINDOWS if family == "qwen2" else {})
    directory = tiny_models.save(tiny_models.build(family, head_dim=32), tmp_path)
    if family == "qwen2":  # which has no such key
        directory = tiny_models.save(tiny_models.build(family, hidden_size=128), tmp_path)
    change(directory, **changes)
    for dtype in ("bfloat16", "float32"):
        ours = load_compiled(str(directory), dtype=dtype, page_size=16, single_rows=False, threads=1).model
        theirs = load_compiled_by_transformers(
            str(directory), dtype=dtype, page_size=16, single_rows=False, threads=1
        ).model
        assert ours.weights_fingerprint == theirs.weights_fingerprint
        assert np.array_equal(ours.frequencies, theirs.frequencies)
        assert ours.end_token_ids == theirs.end_token_ids
        assert ours.context_length == theirs.context_length
        assert ours.layers["window"].tolist() == theirs.layers["window"].tolist()
        assert all(map(np.array_equal, ours._kept, theirs._kept)) and len(ours._kept) == len(theirs._kept)


@pytest.mark.parametrize(
    ("load", "place"),
    [(load_compiled, StoredTensor), (load_compiled_by_transformers, compiled_from_transformers)],
    ids=["our reader", "transformers"],
)
def test_a_layers_arrays_are_freed_before_the_next_layer_is_packed(
    load: Callable[..., CompiledBackend], place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_models.build("llama", head_dim=32, num_hidden_layers=3)
    directory = tiny_models.save(model, tmp_path)
    arrays, alive = list[weakref.ref[np.ndarray]](), list[int]()
    name = "read" if place is StoredTensor else "_array_of"
    read, take_layer = getattr(place, name), CheckpointDecoder._take_layer

    def noted(*arguments: Any) -> np.ndarray:
        array: np.ndarray = read(*arguments)
        arrays.append(weakref.ref(array))
        return array

    def counted(decoder: CheckpointDecoder, row: Any, of: str) -> None:
        alive.append(sum(each() is not None for each in arrays))
        take_layer(decoder, row, of)

    monkeypatch.setattr(place, name, noted)
    monkeypatch.setattr(CheckpointDecoder, "_take_layer", counted)
    backend = load(str(directory), dtype="bfloat16", page_size=16, single_rows=False, threads=1)
    alive.append(sum(each() is not None for each in arrays))
    of_a_layer = len(list(model.model.layers[0].parameters()))
    assert alive == [3 * of_a_layer, 2 * of_a_layer, of_a_layer, 0]
    assert len(arrays) == len(model.state_dict())
    assert backend.model.layer_count == 3


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_a_file_leaves_out_is_what_transformers_takes(family: str) -> None:
    """Shapes of a model of seven billion parameters, of which no weight is made."""
    values = {"model_type": family}
    config = AutoConfig.for_model(family)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    ours = CheckpointConfig(values)
    kept = {key: value for key, value in config.to_dict().items() if key not in NOT_IN_LOGITS and value is not None}
    assert {key: value for key, value in ours.read.items() if value is not None} == kept
    shape = ours.shape(16)
    assert ours.tensor_shapes(shape) == {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    assert ours.eos_token_id == config.eos_token_id


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gemma"}, "its model_type is 'gemma'"),
        ({"architectures": ["LlamaModel"]}, "its architectures are"),
        ({"a_switch": True}, "its keys a_switch are not known"),
        ({"quantization_config": {}}, "its keys quantization_config"),
        ({"rope_interleaved": True}, "its keys rope_interleaved are not known"),
        ({"use_mrope": True}, "its keys use_mrope are not known"),
        ({"hidden_size": "64"}, "its hidden_size is '64'"),
        ({"num_hidden_layers": 3}, "it lacks model.layers.2"),
        ({"num_hidden_layers": 1}, "it has model.layers.1"),
        ({"vocab_size": 999}, "tensors of other shapes"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "its rope_parameters are"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "its rope_parameters are"),
        ({"rms_norm_eps": None}, "its rms_norm_eps is None"),
        ({"attention_bias": 1}, "its attention_bias is 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_known_to_the_letter_is_left_to_transformers(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    directory = tiny_models.save(tiny_models.build("llama", head_dim=32), tmp_path)
    change(directory, **changes)
    with pytest.raises(UnknownConfigError, match=reason):
        load_compiled(str(directory), dtype="float32", page_size=16, single_rows=False, threads=1)


OLD_EXPORT: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "temperature": 0.3,
    "suppress_tokens": [1],
    "bad_words_ids": [[5]],
    "do_sample": True,
}
OLD_DEFAULTS: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 50,
    "max_length": 20,
    "num_beams": 1,
    "do_sample": False,
    "early_stopping": False,
    "suppress_tokens": None,
    "bad_words_ids": [],
}


@pytest.mark.parametrize(("changes", "is_named"), [(OLD_EXPORT, True), (OLD_DEFAULTS, False)])
def test_keys_of_how_to_generate_are_named_as_with_transformers(
    changes: dict[str, Any], is_named: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tiny_models.save(tiny_models.build("llama", head_dim=32), tmp_path)
    change(directory, **changes)
    load_pretrained(str(directory), device="cpu", dtype="float32", attention="sdpa")
    expected = [record.getMessage() for record in caplog.records if record.name.startswith("slipstream")]
    caplog.clear()
    load_compiled(str(directory), dtype="float32", page_size=16, single_rows=False, threads=1)
    assert [record.getMessage() for record in caplog.records] == expected
    line = f"config.json of {directory} has keys that transformers' LlamaForCausalLM does not read, "
    line += f"and neither does this service: {', '.join(sorted(changes))}"
    assert expected == ([line] if is_named else [])


def test_a_quantised_checkpoint_is_refused_with_the_last_reason_at_once(tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("llama", head_dim=32), tmp_path)
    change(directory, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UnsupportedModelError, match=r"is quantised \(gptq\), which no target is served"):
        load_compiled(str(directory), dtype="float32", page_size=16, single_rows=False, threads=1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_stored_head_that_repeats_the_embedding_is_dropped_if_the_config_ties_both(
    dtype: str, tmp_path: Path
) -> None:
    directory = tiny_models.save(tiny_models.build("qwen3", head_dim=32, tie_word_embeddings=True), tmp_path)
    path = directory / "model.safetensors"
    stored = load_file(path)
    embedding = stored["model.embed_tokens.weight"]
    save_file(stored | {"lm_head.weight": embedding.clone()}, path)
    ours = load_compiled(str(directory), dtype=dtype, page_size=16, single_rows=False, threads=1).model
    theirs = load_compiled_by_transformers(
        str(directory), dtype=dtype, page_size=16, single_rows=False, threads=1
    ).model
    assert ours.weights_fingerprint == theirs.weights_fingerprint
    assert all(map(np.array_equal, ours._kept, theirs._kept)) and len(ours._kept) == len(theirs._kept)
    for other in (embedding + 1, embedding[1:].clone(), embedding.half()):
        save_file(stored | {"lm_head.weight": other}, path)
        with pytest.raises(UnknownConfigError, match=r"it has lm_head\.weight"):
            load_compiled(str(directory), dtype=dtype, page_size=16, single_rows=False, threads=1)


_LLAMA3 = CHANGES["llama3"]["rope_parameters"]
MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"num_attention_heads": 0}),
    ("llama", {"num_attention_heads": "2"}),
    ("qwen2", {"num_hidden_layers": None}),
    ("qwen2", {"layer_types": [["x"], "full_attention"]}),
    ("llama", {"rope_scaling": "linear"}),
    ("llama", {"rope_scaling": [1, 2]}),
    ("llama", {"rope_parameters": None, "rope_scaling": {"rope_type": ["x"], "factor": 2.0}}),
    *(
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": factor}})
        for factor in (0, 0.0, -2.0, np.nan, np.inf)
    ),
    *(("llama", {"rope_parameters": None, "rope_theta": base}) for base in (0, -1, np.nan, np.inf, 10**400, "x")),
    *(
        ("llama", {"rope_parameters": _LLAMA3 | changes})
        for changes in ({"high_freq_factor": 0}, {"low_freq_factor": 0}, {"low_freq_factor": 4.0}, {"factor": 0})
    ),
    *(("llama", {"rms_norm_eps": epsilon}) for epsilon in (0.0, -1e-6, np.nan, np.inf)),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("family", "changes"), MALFORMED, ids=str)
def test_a_malformed_config_is_left_to_transformers(family: str, changes: dict[str, Any]) -> None:
    values = {"model_type": family, **changes}
    with pytest.raises(UnknownConfigError) as refused:
        CheckpointConfig(json.loads(json.dumps(values))).shape(16)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("engine", [load_compiled_checkpoint, TransformersModel.load], ids=["compiled", "torch"])
@pytest.mark.parametrize(("family", "changes"), MALFORMED, ids=str)
def test_which_ends_a_malformed_config_in_one_line(
    family: str, changes: dict[str, Any], engine: Callable[..., Any], tmp_path: Path
) -> None:
    directory = tiny_models.save(tiny_models.build(family, hidden_size=128), tmp_path)
    change(directory, **changes)
    ours = {"page_size": 16, "single_rows": False, "threads": 1}
    how = ours if engine is load_compiled_checkpoint else {"device": "cpu"}
    with pytest.raises(UnsupportedModelError) as refused:
        engine(str(directory), dtype="float32", **how)
    assert str(refused.value).startswith(f"config.json of {directory} ")
    assert "\n" not in str(refused.value)


def test_what_is_left_to_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_without_torch("a model", "its model_type is 'gemma'")
    monkeypatch.setattr("slipstream.extras.find_spec", lambda name: None)
    line = (
        r"^a model needs torch and transformers, for its model_type is 'gemma': pip install 'slipstream-llm\[torch\]'$"
    )
    with pytest.raises(UnsupportedModelError, match=line):
        refuse_without_torch("a model", "its model_type is 'gemma'")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16, torch.float64])
def test_weights_of_every_type_are_converted_as_torch_converts_them(dtype: torch.dtype, tmp_path: Path) -> None:
    weight = torch.randn(64, 48, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    save_file({"a": torch.zeros(3), "weight": weight}, tmp_path / "model.safetensors")
    stored = stored_tensors(tmp_path)
    assert stored is not None
    for wanted, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        found, expected = stored["weight"].read(name), weight.to(wanted)
        bits = expected.view(torch.int16 if wanted == torch.bfloat16 else torch.int32).numpy()
        assert np.array_equal(found.view(bits.dtype), bits)


def test_rounding_to_bfloat16_is_torchs_for_every_kind_of_number() -> None:
    bits = np.random.default_rng(4).integers(0, 2**32, 200_000, dtype=np.uint32)
    bits[:6] = [0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0x00008000, 0x00018000, 0x3F808000]
    singles = bits.view(np.float32)
    expected = torch.from_numpy(singles).bfloat16()
    is_number = ~np.isnan(singles)
    assert np.array_equal(rounded(singles)[is_number], expected.view(torch.uint16).numpy()[is_number])
    assert np.isnan((rounded(singles)[~is_number].astype(np.uint32) << 16).view(np.float32)).all()


def test_float64_weights_are_not_taken_for_quantised_ones(tmp_path: Path) -> None:
    types = {"F64": torch.float64, "F32": torch.float32, "F8": torch.float8_e4m3fn}
    save_file({f"{name}.weight": torch.zeros(4).to(kind) for name, kind in types.items()}, tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", "np") as file:
        scaled = {key for key in file.keys() if _is_scaled(key, file)}  # noqa: SIM118
    assert scaled == {"F8.weight"}
