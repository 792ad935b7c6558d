"""Numbers of four and eight bits, and integers that are packed into larger ones, as float32."""

from __future__ import annotations

import numpy as np

from slipstream.sampling.kernel import Floats32

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
"""The values of OCP's FP4 (E2M1) without their sign, by their three bits."""


def _float8_values() -> Floats32:
    bits = np.arange(256)
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    values[(bits & 127) == 127] = np.nan
    return np.where(bits >> 7, -values, values).astype(np.float32)


_FLOAT8 = _float8_values()


def float8(codes: np.ndarray) -> Floats32:
    """Return the numbers of OCP's FP8 (E4M3, without infinities), which are uint8."""
    values: Floats32 = _FLOAT8[codes]
    return values


def float4_pairs(codes: np.ndarray) -> Floats32:
    """Return the numbers ``[..., 2 n]`` of bytes ``[..., n]`` that hold two FP4 (E2M1) numbers, the
    low one first."""
    values = np.concatenate([E2M1, -E2M1])
    return np.stack([values[codes & 15], values[codes >> 4]], axis=-1).reshape(*codes.shape[:-1], -1)


def unpacked(packed: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Return the unsigned integers of ``bits`` bits that int32 numbers hold along an axis, the
    lowest bits first: uint8."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    words = np.moveaxis(packed.view(np.uint32), axis, -1)
    codes = ((words[..., np.newaxis] >> shifts) & np.uint32(2**bits - 1)).astype(np.uint8)
    return np.moveaxis(codes.reshape(*words.shape[:-1], -1), -1, axis)
