"""Reads from a config how a checkpoint's weights are quantised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.dequantising.bitsandbytes import FourBits
from slipstream.dequantising.mxfp4 import Mxfp4
from slipstream.dequantising.packed import Awq, CompressedPacked, Gptq
from slipstream.dequantising.scaled import Scaled
from slipstream.dequantising.scheme import Scheme
from slipstream.engine.errors import UnsupportedModelError

METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors", "gptq", "awq", "mxfp4", "bitsandbytes")
"""Methods (``quant_method``) whose weights are read."""

_SCALES = ("weight_scale", "weight_scale_inv", "scale_inv")
_DENSE = (None, "dense")
_LARGEST_INT8 = 127.0
"""bitsandbytes' int8 scales are the largest number of a row."""


def scheme_of(quantisation: Mapping[str, Any]) -> Scheme:
    """Return how weights are stored by a config's ``quantization_config``. UnsupportedModelError
    names what is not read."""
    try:
        return _scheme(quantisation)
    except (AttributeError, TypeError) as error:
        raise UnsupportedModelError(f"quantization_config has an entry of a wrong kind: {error}") from error


def _scheme(quantisation: Mapping[str, Any]) -> Scheme:
    method = quantisation.get("quant_method")
    if method in ("fp8", "fbgemm_fp8"):
        return Scaled(_block(quantisation, "weight_block_size"), _SCALES)
    if method == "compressed-tensors":
        return _compressed(quantisation)
    if method == "gptq":
        _only(quantisation, "checkpoint_format", (None, "gptq", "gptq_v2"))
        if any(not key.startswith("-") for key in quantisation.get("dynamic") or ()):  # "-" leaves a layer plain
            raise UnsupportedModelError("dynamic gives layers bits or groups of their own, which is not read")
        offset = 0 if quantisation.get("checkpoint_format") == "gptq_v2" else 1
        return Gptq(_bits(quantisation, (2, 4, 8)), offset)
    if method == "awq":
        _only(quantisation, "version", (None, "gemm", "GEMM"))
        _bits(quantisation, (4,))
        return Awq()
    if method == "mxfp4":
        return Mxfp4()
    if method in ("bitsandbytes", None) and quantisation.get("load_in_8bit"):
        return Scaled(None, ("SCB",), _LARGEST_INT8)
    if method in ("bitsandbytes", None) and quantisation.get("load_in_4bit"):
        return FourBits()
    raise UnsupportedModelError(f"quant_method is {method!r}, and only {', '.join(METHODS)} are read")


def _compressed(quantisation: Mapping[str, Any]) -> Scheme:
    sparsity = (quantisation.get("sparsity_config") or {}).get("format")
    if sparsity not in _DENSE:
        raise UnsupportedModelError(f"sparsity_config.format is {sparsity!r}, and only dense weights are read")
    if quantisation.get("transform_config"):
        raise UnsupportedModelError("transform_config turns the weights, which is not read")
    groups = [*(quantisation.get("config_groups") or {}).values()]
    formats = {each.get("format") or quantisation.get("format") for each in groups}
    weights = [each.get("weights") or {} for each in groups]
    if len(formats) != 1 or len({each.get("num_bits") for each in weights}) != 1:
        raise UnsupportedModelError("config_groups store weights in several ways, and only one way is read")
    (form,), first = formats, weights[0]
    if form == "pack-quantized":
        if not all(each.get("symmetric", True) for each in weights):
            raise UnsupportedModelError("config_groups have zeros (symmetric: false), which are not read")
        return CompressedPacked(_bits({"bits": first.get("num_bits")}, (2, 4, 8)))
    if form in ("float-quantized", "int-quantized", "naive-quantized"):
        if first.get("type") == "int" and not first.get("symmetric", True):
            raise UnsupportedModelError("config_groups have zeros (symmetric: false), which are not read")
        return Scaled(_block(first, "block_structure"), _SCALES)
    raise UnsupportedModelError(
        f"format is {form!r}, and only pack-quantized, float-quantized and int-quantized are read"
    )


def _block(quantisation: Mapping[str, Any], key: str) -> list[int] | None:
    block = quantisation.get(key)
    if block is None:
        return None
    if not (isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)):
        raise UnsupportedModelError(f"{key} must be two positive numbers, but is {block!r}")
    return block


def _bits(quantisation: Mapping[str, Any], known: tuple[int, ...]) -> int:
    bits = quantisation.get("bits", quantisation.get("w_bit"))
    if bits not in known:
        raise UnsupportedModelError(f"bits is {bits!r}, and only {', '.join(map(str, known))} are read")
    return int(bits)


def _only(quantisation: Mapping[str, Any], key: str, known: tuple[object, ...]) -> None:
    if quantisation.get(key) not in known:
        raise UnsupportedModelError(f"{key} is {quantisation.get(key)!r}, and only {known[-2]} is read")
