"""Features of this machine's processor that products are compiled for. Only `HAS_BFLOAT16_DOTS` and
`HAS_MATRICES` change a sum."""

from __future__ import annotations

import ctypes
import platform

import llvmlite.binding as llvm

_FEATURES = llvm.get_host_cpu_features()

HAS_BFLOAT16_DOTS = bool(_FEATURES.get("avx512bf16"))
"""One instruction that adds the products of two bfloat16 to a sum, rounded otherwise than two fused
multiply-adds."""


def _may_use_matrices() -> bool:
    """Ask the system for the matrix unit. Return True if this process may use it."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    arch_prctl, ask_for_state, matrices = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, ask_for_state, matrices) == 0)


HAS_MATRICES = bool(_FEATURES.get("amx-bf16") and _FEATURES.get("amx-tile")) and _may_use_matrices()
"""A unit that multiplies sixteen rows of bfloat16 by sixteen outputs (AMX), rounded in a way of its
own."""

HAS_BYTE_DOTS = bool(_FEATURES.get("avx512vnni"))
"""One that adds the products of four bytes."""

HAS_WORD_DOTS = bool(_FEATURES.get("avx2"))
"""One that adds the products of two 16-bit numbers to one another."""

_HAS_LARGE_REGISTERS = bool(_FEATURES.get("avx512f"))

REGISTERS = 32 if _HAS_LARGE_REGISTERS else 8
"""Sixteen float32 numbers that it holds at a time: 32 registers of 64 bytes, 16 of 32, or Arm's 32
of 16."""

ASKS_AHEAD = not _HAS_LARGE_REGISTERS
"""True if weights are prefetched. Where a tile is computed in parts, memory rests during all but
the first. Prefetching whole tiles is not measured."""


def _vectors() -> str:
    """torch's name of the vector instructions that a processor has."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return "DEFAULT"
    if all(_FEATURES.get(name) for name in ("avx512vl", "avx512bw", "avx512dq", "fma")):
        return "AVX512"
    return "AVX2" if _FEATURES.get("avx2") and _FEATURES.get("fma") else "DEFAULT"


VECTORS = _vectors()
"""torch's name of the processor's vector instructions: a part of a model's fingerprint."""
