"""The hidden states of a transformers model's last forward, kept by hooks on its modules."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as TokenSequence
from typing import Any

import numpy as np
import torch

from slipstream.engine.errors import UnsupportedModelError
from slipstream.sampling.kernel import Floats32


class HookedStates:
    """`slipstream.engine.hidden_heads.HiddenStates` of a ``PreTrainedModel``."""

    def __init__(self, model: Any, on_keep: Callable[[], None]) -> None:
        """``on_keep`` is called once the states are wanted: a forward then has to pass the
        modules."""
        config = model.config.get_text_config()
        self.hidden_size = int(config.hidden_size)
        self.layer_count = int(config.num_hidden_layers)
        self._model = model
        self._on_keep = on_keep
        self._last = torch.empty(0)
        self._inputs: dict[int, torch.Tensor] = {}

    def tap(self, layers: TokenSequence[int] = ()) -> None:
        """See `slipstream.engine.hidden_heads.HiddenStates`."""
        self._model.get_output_embeddings().register_forward_pre_hook(self._keep_last)
        modules = _layers_of(self._model, self.layer_count) if layers else []
        for layer in layers:
            self._inputs[layer] = torch.empty(0)
            modules[layer].register_forward_pre_hook(self._keeper_of(layer), with_kwargs=True)
        self._on_keep()

    def last(self) -> Floats32:
        """See `slipstream.engine.hidden_heads.HiddenStates`."""
        return _floats(self._last)

    def tapped(self) -> Floats32:
        """See `slipstream.engine.hidden_heads.HiddenStates`."""
        return np.concatenate([_floats(states) for states in self._inputs.values()], axis=1)

    def _keep_last(self, module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        self._last = inputs[0]

    def _keeper_of(self, layer: int) -> Callable[[Any, tuple[torch.Tensor, ...], dict[str, Any]], None]:
        def keep(module: Any, inputs: tuple[torch.Tensor, ...], named: dict[str, Any]) -> None:
            # A layer may add to its input in place.
            self._inputs[layer] = (inputs[0] if inputs else named["hidden_states"]).clone()

        return keep


def _layers_of(model: Any, count: int) -> Any:
    """Return a decoder's layers. UnsupportedModelError if they are not where most models have
    them."""
    layers = getattr(model.get_decoder(), "layers", None)
    if layers is None or len(layers) != count:
        raise UnsupportedModelError(f"{type(model).__name__} does not show the inputs of its layers")
    return layers


def _floats(states: torch.Tensor) -> Floats32:
    """Return ``[rows, size]`` of states ``[1, rows, size]``."""
    numbers: Floats32 = states[0].float().numpy()
    return numbers
