"""A mark of tests that compare bits with torch's: they hold where torch computes as we do."""

from __future__ import annotations

import pytest
import torch

SAME_LANES = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="torch computes in other lanes on this processor"
)
