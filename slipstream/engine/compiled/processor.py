"""What this machine's processor has that products are compiled for. None of it changes a sum, but `HAS_BFLOAT16_DOTS`."""

from __future__ import annotations

import llvmlite.binding as llvm

_FEATURES = llvm.get_host_cpu_features()

HAS_BFLOAT16_DOTS = bool(_FEATURES.get("avx512bf16"))
"""One instruction that adds the products of two bfloat16 to a sum, rounded otherwise than two fused multiply-adds."""

HAS_BYTE_DOTS = bool(_FEATURES.get("avx512vnni"))
"""One that adds the products of four bytes."""

HAS_WORD_DOTS = bool(_FEATURES.get("avx2"))
"""One that adds the products of two 16-bit numbers to one another."""

_HAS_LARGE_REGISTERS = bool(_FEATURES.get("avx512f"))

REGISTERS = 32 if _HAS_LARGE_REGISTERS else 8
"""Sixteen float32 numbers that it holds at a time: 32 registers of 64 bytes, 16 of 32, or Arm's 32 of 16."""

ASKS_AHEAD = not _HAS_LARGE_REGISTERS
"""Whether weights are to be asked for before they are needed. Where a tile is computed in parts, memory rests during all but
the first; where it is not, nobody has measured what that brings."""
