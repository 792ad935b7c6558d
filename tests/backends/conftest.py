"""Fixtures of the backends' tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def products_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter multiplies so that a row's bits depend on the row alone, as on a device.

    By itself it asks NumPy's BLAS. The kernels of OpenBLAS for Haswell and Zen add up a row in an
    order that depends on where the row stands. `einsum` without `optimize` asks no BLAS and treats
    all rows alike.
    """
    from triton.runtime import interpreter

    def product(_: object, a: Any, b: Any, d: Any, _precision: object, _imprecise: object) -> Any:
        assert a.data.dtype == b.data.dtype and a.data.dtype.kind == "f", "the kernels here multiply NumPy's floats"
        by_row = np.einsum("...ij,...jk->...ik", a.data, b.data, dtype=d.data.dtype)
        return interpreter.TensorHandle(by_row + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", product)
