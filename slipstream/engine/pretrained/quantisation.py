"""Quantised weights of a draft, by transformers' own quantisers.

Their numbers may depend on the rows beside a row, on the library's version and on the device. A
draft only guesses, so this costs no text. A target needs plain weights
(`slipstream.dequantising`), or a GGUF file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import TorchAoConfig

from slipstream.engine.checkpoint import quantisation_in
from slipstream.engine.errors import UnsupportedModelError

_PLACING = "accelerate"
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "torchao": (_PLACING, "torchao"),
    "bitsandbytes": (_PLACING, "bitsandbytes"),
    "compressed-tensors": (_PLACING, "compressed_tensors"),
    "gptq": (_PLACING, "optimum", "gptqmodel"),
    "awq": (_PLACING, "gptqmodel"),
}
"""Packages that transformers needs for a method, beside itself. A method that is not here computes
with code that transformers downloads, or was never tried."""

_EXTRA = ("torchao", "bitsandbytes", "compressed-tensors")
"""Methods whose packages the extra ``quantised`` installs."""

_TILED = "tile_packed_to_4d"
"""Layout of four-bit weights that torch's own kernels for CUDA read."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The method by which a draft's weights are quantised."""

    method: str
    at_load: str = ""
    """Bits to quantise plain weights to while they are loaded: ``int8`` or ``int4``. Empty: they
    are stored quantised."""

    def refuse(self, name: str, device: str) -> None:
        """Raise UnsupportedModelError if it cannot be computed here."""
        if self.method not in LIBRARIES:
            raise UnsupportedModelError(
                f"{name} is quantised ({self.method}), which not even a draft is served with: give one of "
                f"{', '.join(LIBRARIES)}, or make a plain copy: slipstream dequantise MODEL --out DIR"
            )
        if self.at_load == "int4" and not device.startswith("cuda"):
            raise UnsupportedModelError(
                f"--quantize int4 needs a CUDA device, and --device is {device!r}: give int8, or a .gguf file as the draft"
            )
        absent = [package for package in LIBRARIES[self.method] if not find_spec(package)]
        if absent:
            extra = "'slipstream-llm[quantised]'"
            install = extra if self.method in _EXTRA else " ".join(each.replace("_", "-") for each in absent)
            raise UnsupportedModelError(
                f"{name} with weights by {self.method} needs {' and '.join(absent)}: pip install {install}"
            )

    def loading_arguments(self, place: torch.device) -> dict[str, Any]:
        """Return arguments of ``from_pretrained``. Some quantised weights cannot be moved later."""
        if self.method == "bitsandbytes":  # it warns in each forward that it rounds activations to float16
            logging.getLogger("bitsandbytes.autograd").setLevel(logging.ERROR)
        arguments: dict[str, Any] = {"device_map": {"": str(place)}}
        if self.at_load:
            arguments["quantization_config"] = TorchAoConfig(_CONFIGS[self.at_load]())
        return arguments


def quantisation_of(directory: Path, at_load: str, name: str) -> Quantisation | None:
    """Return how the weights in a directory are quantised, or are to be; None if they are plain.
    UnsupportedModelError if they would be quantised twice."""
    said = quantisation_in(directory)
    if said is None:
        return Quantisation("torchao", at_load) if at_load else None
    is_unnamed = said.get("load_in_4bit") or said.get("load_in_8bit")
    method = str(said.get("quant_method") or ("bitsandbytes" if is_unnamed else "by a method it does not name"))
    if at_load:
        raise UnsupportedModelError(f"{name} is quantised already ({method}): leave out --quantize {at_load}")
    return Quantisation(method)


def is_packed(weight: torch.Tensor) -> bool:
    """Return True if a weight is several tensors that a library packs into one."""
    return is_traceable_wrapper_subclass(weight)


def _int8() -> Any:
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig()


def _int4() -> Any:
    from torchao.quantization import Int4WeightOnlyConfig

    return Int4WeightOnlyConfig(group_size=128, int4_packing_format=_TILED)


_CONFIGS: Mapping[str, Callable[[], Any]] = {"int8": _int8, "int4": _int4}
