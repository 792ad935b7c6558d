"""A short trial at load: whether compiled forwards say what a reference says."""

from __future__ import annotations

import numpy as np

from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.decoder import NotCompiledError
from slipstream.engine.model import Segment
from slipstream.engine.pages import MIB
from slipstream.sampling.kernel import Floats32

_LENGTH = 24
_TOLERANCES = {"float32": 1e-3, "f32": 1e-3, "bfloat16": 0.15}
_TOLERANCE = 0.15
"""Largest distance of logits from the model's own, as a relative root mean square. Rounding alone
causes a millionth (float32) or a hundredth (bfloat16); with random weights a tenth."""


def trial_tokens(vocabulary_size: int) -> list[int]:
    """Return the tokens of a trial."""
    return [token % vocabulary_size for token in range(7, 7 + _LENGTH)]


def compare(backend: CompiledBackend, tokens: list[int], expected: Floats32, tolerance: float | None = None) -> None:
    """Raise NotCompiledError if compiled logits are far from those that are ``expected`` after each
    token, by more than the ``tolerance`` or, by default, that of the model's numbers. The backend's
    KV memory must be reserved again afterwards."""
    page_count = -(-len(tokens) // backend.page_size)
    backend.reserve((page_count + 0.5) * backend.page_size * backend.model.bytes_per_token / MIB)
    logits = backend.forward([Segment(tokens, 0, range(1, page_count + 1), len(tokens))])
    distance = float(np.sqrt(np.square(logits - expected).mean() / np.square(expected).mean()))
    if not distance <= (tolerance or _TOLERANCES.get(backend.model.dtype, _TOLERANCE)):
        raise NotCompiledError(f"its logits would be {distance:.2g} off, relatively")
