"""A quantised checkpoint becomes a plain one whose weights are those that its numbers mean."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from typer.testing import CliRunner

from slipstream.cli.__main__ import app
from slipstream.dequantising.bitsandbytes import FourBits
from slipstream.dequantising.conversion import dequantise
from slipstream.dequantising.mxfp4 import Mxfp4
from slipstream.dequantising.scheme import Weight
from slipstream.dequantising.schemes import scheme_of
from slipstream.dequantising.small_floats import float8
from slipstream.engine.checkpoint import check_config, check_weights
from slipstream.engine.errors import UnsupportedModelError
from tests import tiny_models

GROUP = 32
Tensors = dict[str, torch.Tensor]

pytestmark = pytest.mark.essential


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack unsigned integers ``[rows, n]`` into int32 along the columns, the lowest bits first."""
    count = 32 // bits
    words = np.zeros((len(codes), codes.shape[1] // count), dtype=np.uint32)
    for index in range(count):
        words |= codes.numpy().astype(np.uint32)[:, index::count] << np.uint32(bits * index)
    return torch.from_numpy(words.view(np.int32))


def codes_of(shape: torch.Size, bits: int) -> torch.Tensor:
    return torch.randint(0, 2**bits, shape)


def fp8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    rows, columns = (-(-size // GROUP) for size in weight.shape)
    scale = torch.rand(rows, columns) * 0.01
    stored = (weight * 40).to(torch.float8_e4m3fn)
    spread = scale.repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)[: len(weight), : weight.shape[1]]
    return {"weight": stored, "weight_scale_inv": scale}, stored.float() * spread


def by_channel(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127
    stored = (weight / scale).round().to(torch.int8)
    return {"weight": stored, "weight_scale": scale}, stored.float() * scale


def int8_of_rows(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    largest = weight.abs().amax(1)
    stored = (weight / largest[:, None] * 127).round().to(torch.int8)
    given = {"weight": stored, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return given, stored.float() * (largest / 127)[:, None]


def gptq(weight: torch.Tensor, bits: int = 4) -> tuple[Tensors, torch.Tensor]:
    out, into = weight.shape
    codes, zeros = codes_of(torch.Size((into, out)), bits), codes_of(torch.Size((into // GROUP, out)), bits)
    scales, order = torch.rand(into // GROUP, out).half(), torch.randperm(into) // GROUP
    given = {
        "qweight": packed(codes.T, bits).T.contiguous(),
        "qzeros": packed(zeros, bits),
        "scales": scales,
        "g_idx": order.int(),
    }
    return given, ((codes - (zeros + 1)[order]) * scales.float()[order]).T


def awq(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    out, into = weight.shape
    codes, zeros = codes_of(torch.Size((into, out)), 4), codes_of(torch.Size((into // GROUP, out)), 4)
    scales = torch.rand(into // GROUP, out).half()

    def interleaved(each: torch.Tensor) -> torch.Tensor:
        return each.reshape(len(each), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].reshape(len(each), -1)

    given = {"qweight": packed(interleaved(codes), 4), "qzeros": packed(interleaved(zeros), 4), "scales": scales}
    wide = [each.float().repeat_interleave(GROUP, 0) for each in (zeros, scales)]
    return given, ((codes - wide[0]) * wide[1]).T


def compressed(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scale = codes_of(weight.shape, 4), torch.rand(len(weight), weight.shape[1] // GROUP).bfloat16()
    given = {"weight_packed": packed(codes, 4), "weight_scale": scale, "weight_shape": torch.tensor(weight.shape)}
    return given, (codes - 8) * scale.float().repeat_interleave(GROUP, 1)


def four_bits(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    table, largest = torch.linspace(-1, 1, 16), torch.rand(weight.numel() // GROUP)
    codes = torch.randint(0, 16, (weight.numel(),))
    state = json.dumps({"blocksize": GROUP, "shape": list(weight.shape), "quant_type": "nf4"}).encode()
    given = {
        "weight": (codes[::2] * 16 + codes[1::2]).to(torch.uint8)[:, None],
        "weight.absmax": largest,
        "weight.quant_map": table,
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(state), dtype=torch.uint8),
    }
    return given, (table[codes] * largest.repeat_interleave(GROUP)).reshape(weight.shape)


def grouped(form: str, **weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"weights": weights}}}


KINDS: dict[str, tuple[Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]], dict[str, Any]]] = {
    "fp8": (fp8, {"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]}),
    "int-quantized": (by_channel, grouped("int-quantized", num_bits=8, type="int", strategy="channel")),
    "pack-quantized": (compressed, grouped("pack-quantized", num_bits=4, type="int", group_size=GROUP)),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}),
    "gptq-8": (lambda weight: gptq(weight, 8), {"quant_method": "gptq", "bits": 8}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}),
    "bitsandbytes-8": (int8_of_rows, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "bitsandbytes-4": (four_bits, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
}


def quantised(directory: Path, kind: str) -> tuple[Path, Tensors]:
    """Save a tiny model whose matrices are quantised. Returns what its weights mean."""
    torch.manual_seed(1)
    quantise, said = KINDS[kind]
    tiny_models.save(tiny_models.build("llama"), directory)
    stored, meant = {}, {}
    for name, weight in load_file(directory / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = meant[name] = weight
            continue
        given, meant[name] = quantise(weight.float())
        stored |= {name.removesuffix("weight") + each: tensor.contiguous() for each, tensor in given.items()}
    save_file(stored | {"model.layers.0.self_attn.k_scale": torch.ones(1)}, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": said}))
    return directory, meant


def loaded(directory: Path) -> Tensors:
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    return {
        name: each for file in {*index["weight_map"].values()} for name, each in load_file(directory / file).items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_what_the_quantised_ones_mean(tmp_path: Path, kind: str) -> None:
    directory, meant = quantised(tmp_path / "small", kind)
    with pytest.raises(UnsupportedModelError, match="slipstream dequantise MODEL --out DIR"):
        check_config(directory, "it")
    ran = CliRunner().invoke(app, ["dequantise", str(directory), "--out", str(tmp_path / "plain")])
    assert ran.exit_code == 0, ran.output
    plain = loaded(tmp_path / "plain")
    assert plain.keys() == meant.keys()
    for name, weight in meant.items():
        assert torch.equal(plain[name], weight.bfloat16()), name
    check_config(tmp_path / "plain", "it")
    assert check_weights(tmp_path / "plain", "it")


def test_files_are_split_and_all_small_files_come(tmp_path: Path) -> None:
    directory, meant = quantised(tmp_path / "small", "fp8")
    told: list[tuple[int, int]] = []
    written = dequantise(str(directory), tmp_path / "plain", lambda *count: told.append(count), file_bytes=100_000)
    assert written == sum(2 * weight.numel() for weight in meant.values())
    assert told == [(done, len(meant)) for done in range(1, len(meant) + 1)]
    assert len([*(tmp_path / "plain").glob("*.safetensors")]) > 2
    assert (tmp_path / "plain" / "tokenizer.json").read_bytes() == (directory / "tokenizer.json").read_bytes()
    assert loaded(tmp_path / "plain").keys() == meant.keys()


def test_fp4_experts_are_those_of_transformers() -> None:
    blocks = torch.randint(0, 256, (3, 10, 4, 16), dtype=torch.uint8)
    scales = torch.randint(110, 135, (3, 10, 4), dtype=torch.uint8)
    given = {"x_blocks": blocks.numpy(), "x_scales": scales.numpy()}
    (weight,) = Mxfp4().weights(given)
    numbers = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).numpy()
    assert np.array_equal(np.concatenate([*Mxfp4().dequantised(weight, given)]), numbers)


def test_fp8_experts_have_scales_of_their_own() -> None:
    given, meant = zip(*(fp8(torch.randn(40, 70)) for _ in range(3)), strict=True)
    stored = {
        "x.gate_up_proj": torch.stack([each["weight"] for each in given]).view(torch.uint8).numpy(),
        "x.gate_up_proj_scale_inv": torch.stack([each["weight_scale_inv"] for each in given]).numpy(),
    }
    scheme = scheme_of({"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]})
    (weight,) = scheme.weights(stored)
    assert weight.name == "x.gate_up_proj"
    assert np.array_equal(np.concatenate([*scheme.dequantised(weight, stored)]), torch.stack(meant).numpy())


def test_fp8_numbers_are_those_of_torch() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    assert np.array_equal(float8(codes.numpy()), codes.view(torch.float8_e4m3fn).float().numpy(), equal_nan=True)


def test_scales_that_are_quantised_themselves_are_followed() -> None:
    given, meant = four_bits(torch.rand(64, 64))
    codes, table = torch.randint(0, 256, (128,), dtype=torch.uint8), torch.linspace(-1, 1, 256)
    nested = torch.rand(2)
    state = {"blocksize": GROUP, "shape": [64, 64], "nested_blocksize": 64, "nested_offset": 0.5}
    largest = table[codes.long()] * nested.repeat_interleave(64) + 0.5
    tensors = {f"a.{name}": tensor.numpy() for name, tensor in given.items()}
    tensors["a.weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), dtype=np.uint8)
    tensors |= {"a.weight.absmax": codes.numpy(), "a.weight.nested_absmax": nested.numpy()}
    tensors["a.weight.nested_quant_map"] = table.numpy()
    (weight,) = FourBits().weights(tensors)
    expected = meant.reshape(-1) / given["weight.absmax"].repeat_interleave(GROUP) * largest.repeat_interleave(GROUP)
    np.testing.assert_allclose(next(FourBits().dequantised(weight, tensors)).reshape(-1), expected.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"quant_method": "hqq"}, "quant_method is 'hqq', and only fp8"),
        ({"quant_method": "gptq", "bits": 3}, "bits is 3, and only 2, 4, 8"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv', and only gemm"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size must be two positive numbers"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:lm_head": {}, "+:.*down.*": {"bits": 8}}}, "dynamic gives"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"quant_method": "compressed-tensors", "config_groups": ["4 bits"]}, "an entry of a wrong kind"),
        (grouped("nvfp4-pack-quantized", num_bits=4, type="float"), "format is 'nvfp4-pack-quantized'"),
        (grouped("pack-quantized", num_bits=4, type="int", symmetric=False), r"symmetric: false"),
        (
            grouped("float-quantized", num_bits=8, type="float", block_structure="128x128"),
            "block_structure must be two",
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "several ways"),
        ({"quant_method": "fp8"}, "no tensor of the checkpoint is quantised"),
        ({"quant_method": "gptq", "bits": 4}, "no tensor of the checkpoint is quantised"),
        ({}, "has no quantization_config"),
    ],
)
def test_what_is_not_read_is_named_and_nothing_is_left(tmp_path: Path, said: dict[str, Any], named: str) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": said}))
    with pytest.raises(UnsupportedModelError, match=named):
        dequantise(str(directory), tmp_path / "out", lambda *_: None)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_parts_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"x_blocks has no x_scales"):
        [*Mxfp4().weights(["x_blocks"])]
    small = {"x_blocks": np.zeros((1, 2, 3, 16), np.uint8), "x_scales": np.zeros((1, 2, 4), np.uint8)}
    with pytest.raises(UnsupportedModelError, match=r"blocks of x are \[1, 2, 3, 16\]"):
        next(Mxfp4().dequantised(Weight("x", ("x_blocks", "x_scales")), small))
    for kind, part in [
        ("gptq", "scales"),
        ("awq", "scales"),
        ("fp8", "weight_scale_inv"),
        ("bitsandbytes-4", "weight.absmax"),
    ]:
        directory, _ = quantised(tmp_path / kind, kind)
        stored = load_file(directory / "model.safetensors")
        name = f"model.layers.1.mlp.up_proj.{part}"
        save_file(stored | {name: stored[name][:1].contiguous()}, directory / "model.safetensors")
        with pytest.raises(UnsupportedModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
            dequantise(str(directory), tmp_path / "out", lambda *_: None)


def test_a_damaged_file_is_named_and_other_weights_are_not_copied(tmp_path: Path) -> None:
    directory, _ = quantised(tmp_path / "small", "fp8")
    (directory / "pytorch_model.bin").write_bytes(b"weights of another form")
    dequantise(str(directory), tmp_path / "plain", lambda *_: None)
    assert not (tmp_path / "plain" / "pytorch_model.bin").exists()
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UnsupportedModelError, match=r"model\.safetensors of .* is truncated"):
        dequantise(str(directory), tmp_path / "out", lambda *_: None)


def test_groups_that_are_not_of_one_size_are_refused() -> None:
    """A last group that is shorter would shift the borders of all others."""
    packed_rows = {"x.qweight": np.zeros((5, 8), np.int32), "x.qzeros": np.zeros((3, 1), np.int32)}  # 40 inputs
    packed_columns = {"x.weight_packed": np.zeros((4, 5), np.int32), "x.weight_shape": np.array([4, 40])}
    awq = {"x.qweight": np.zeros((40, 1), np.int32), "x.qzeros": np.zeros((3, 1), np.int32)}
    for said, given in (
        ({"quant_method": "gptq", "bits": 4}, {**packed_rows, "x.scales": np.ones((3, 8), np.float32)}),
        ({"quant_method": "awq", "bits": 4}, {**awq, "x.scales": np.ones((3, 8), np.float32)}),
        (grouped("pack-quantized", num_bits=4), {**packed_columns, "x.weight_scale": np.ones((4, 3), np.float32)}),
    ):
        scheme = scheme_of(said)
        (weight,) = scheme.weights(given)
        with pytest.raises(UnsupportedModelError, match=r"the parts of x\.weight do not fit together"):
            next(scheme.dequantised(weight, given))


@pytest.mark.parametrize(
    ("state", "fits"),
    [
        ({"blocksize": 10**14, "shape": [8, 8]}, True),  # one block, longer than its numbers
        ({"blocksize": 64, "shape": [8, 8], "nested_blocksize": 10**14, "nested_offset": 0}, True),
        ({"blocksize": 32, "shape": [8, 8]}, False),
        ({"blocksize": 0, "shape": [8, 8]}, False),
        ({"blocksize": 10**14, "shape": [2**31, 2**31]}, False),
    ],
)
def test_sizes_that_no_tensor_has_take_no_memory(state: dict[str, Any], fits: bool) -> None:
    tensors = {
        "x": np.zeros((32, 1), np.uint8),
        "x.absmax": np.zeros(1, np.uint8),
        "x.quant_map": np.ones(16, np.float32),
        "x.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), np.uint8),
    }
    if "nested_blocksize" in state:
        tensors |= {"x.nested_absmax": np.ones(1, np.float32), "x.nested_quant_map": np.ones(256, np.float32)}
    (weight,) = FourBits().weights(tensors)
    with nullcontext() if fits else pytest.raises(UnsupportedModelError, match="the parts of x do not fit together"):
        assert next(FourBits().dequantised(weight, tensors)).shape == (8, 8)


def test_a_folder_that_is_there_stays(tmp_path: Path) -> None:
    directory, _ = quantised(tmp_path / "small", "fp8")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").touch()
    with pytest.raises(UnsupportedModelError, match="exists already"):
        dequantise(str(directory), tmp_path / "out", lambda *_: None)
    assert (tmp_path / "out" / "kept").exists()
    with pytest.raises(UnsupportedModelError, match="cannot be written"):
        dequantise(str(directory), Path("/proc/out"), lambda *_: None)


def test_a_link_takes_the_folder_and_a_run_that_was_killed_is_begun_again(tmp_path: Path) -> None:
    directory, meant = quantised(tmp_path / "small", "fp8")
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    (tmp_path / "disk.unfinished").mkdir()
    (tmp_path / "disk.unfinished" / "model-00007.safetensors").write_bytes(b"half")
    dequantise(str(directory), tmp_path / "out", lambda *_: None)
    assert loaded(tmp_path / "out").keys() == meant.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "out", "small"]
    assert not (tmp_path / "disk" / "model-00007.safetensors").exists()


def test_two_runs_do_not_write_one_folder(tmp_path: Path) -> None:
    directory, meant = quantised(tmp_path / "small", "fp8")

    def second(done: int, count: int) -> None:
        if done == count:
            with pytest.raises(UnsupportedModelError, match="is being written by another process"):
                dequantise(str(directory), tmp_path / "out", lambda *_: None)

    dequantise(str(directory), tmp_path / "out", second)
    assert loaded(tmp_path / "out").keys() == meant.keys()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda model: (model / "adapter_config.json").write_text("{}"), "has adapter_config.json"),
        (lambda model: (model / "model.safetensors").rename(model / "weights.bin"), "has its weights in weights.bin"),
        (lambda model: (model / "merges.txt").symlink_to(model / "nothing"), r"merges\.txt cannot be read: No such"),
    ],
)
def test_what_would_not_come_is_named_before_the_weights(
    spoil: Callable[[Path], object], named: str, tmp_path: Path
) -> None:
    directory, _ = quantised(tmp_path / "model", "fp8")
    spoil(directory)
    told: list[int] = []
    with pytest.raises(UnsupportedModelError, match=named):
        dequantise(str(directory), tmp_path / "out", lambda done, _: told.append(done))
    assert told == [] and [path.name for path in tmp_path.iterdir()] == ["model"]


def test_templates_in_a_folder_and_tensors_without_numbers_come_too(tmp_path: Path) -> None:
    directory, _ = quantised(tmp_path / "model", "fp8")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"text_config": None}))
    empty = {"model.none": torch.empty(0, 4, dtype=torch.bfloat16)}
    save_file(load_file(directory / "model.safetensors") | empty, directory / "model.safetensors")
    dequantise(str(directory), tmp_path / "out", lambda *_: None)
    assert (tmp_path / "out" / "additional_chat_templates" / "tools.jinja").read_text() == "{{ tools }}"
    assert loaded(tmp_path / "out")["model.none"].shape == (0, 4)


def test_a_disk_that_is_full_is_named_and_holds_nothing(tmp_path: Path) -> None:
    directory, _ = quantised(tmp_path / "small", "fp8")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(UnsupportedModelError, match=r"cannot be replaced \(.*busy\): name a folder in it"):
            dequantise(str(directory), disk, lambda *_: None)
        with pytest.raises(UnsupportedModelError, match=r"plain cannot be written: .*[Nn]o space left"):
            dequantise(str(directory), disk / "plain", lambda *_: None)
        assert not [*disk.iterdir()]
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
