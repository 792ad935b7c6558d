"""The hidden states of the last compiled forward, read where it has left them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as TokenSequence

import numpy as np

from slipstream.engine.compiled.decoder import Decoder
from slipstream.engine.compiled.products import WIDENED
from slipstream.engine.compiled.workspace import Workspace
from slipstream.sampling.blocks import floats_of
from slipstream.sampling.kernel import Floats32


class CompiledStates:
    """`slipstream.engine.hidden_heads.HiddenStates` of a backend whose ``step`` it shares."""

    def __init__(self, model: Decoder, step: np.ndarray, workspace: Workspace) -> None:
        self.hidden_size, self.layer_count = model.hidden_size, model.layer_count
        self._halves = model.bf16 and not WIDENED
        self._step, self._workspace = step, workspace

    def tap(self, layers: TokenSequence[int] = ()) -> None:
        """See `slipstream.engine.hidden_heads.HiddenStates`."""
        self._workspace.keep_inputs(tuple(layers))

    def last(self) -> Floats32:
        """See `slipstream.engine.hidden_heads.HiddenStates`: the inputs of the output matrix."""
        shape = int(self._step["wanted_count"]), self.hidden_size
        width, kind = (2, np.int16) if self._halves else (4, np.float32)
        memory = (ctypes.c_char * (shape[0] * shape[1] * width)).from_address(int(self._step["inputs"]))
        states: np.ndarray = np.ndarray(shape, kind, memory)  # type: ignore[arg-type]  # any buffer will do
        return floats_of(states) if self._halves else states.copy()

    def tapped(self) -> Floats32:
        """See `slipstream.engine.hidden_heads.HiddenStates`."""
        kept = self._workspace.inputs[:, : int(self._step["row_count"])]
        states: Floats32 = kept.transpose(1, 0, 2).reshape(kept.shape[1], -1)
        return states
