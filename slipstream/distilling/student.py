"""The draft that is trained: loaded whole, computed at the collected rows only, with adapters if
wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from slipstream.distilling.errors import DistilError
from slipstream.distilling.settings import DistilSettings
from slipstream.engine.checkpoint import directory_of, one_line
from slipstream.engine.pretrained.loading import load_pretrained, read_config
from slipstream.extras import missing
from slipstream.hosting.tokenizer_files import embedded_directory

_ADAPTER = "default"
_STORED_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Student:
    """A draft in float32, and its logits.

    The logits of a whole batch would take gigabytes. All that comes after a model's output matrix
    is done to each number alone, so the rows are chosen before it.
    """

    def __init__(self, directory: Path, settings: DistilSettings) -> None:
        """Load a draft. UnsupportedModelError if it cannot be served or is not whole."""
        stored = getattr(read_config(directory, settings.draft), "dtype", None)
        self.stored_type: torch.dtype = stored if stored in _STORED_TYPES else torch.bfloat16
        """The type in which the draft's weights are stored."""
        self.model = load_pretrained(str(directory), device=settings.device, dtype="float32", attention=None)
        self.model.requires_grad_(True)
        self._adapted: Any = None
        self._device, self._bfloat16 = torch.device(settings.device).type, settings.uses_bfloat16
        self._places: torch.Tensor | None = None
        self.model.get_output_embeddings().register_forward_pre_hook(self._choose)

    @property
    def context_length(self) -> int:
        """Tokens that the draft can read."""
        return int(getattr(self.model.config.get_text_config(), "max_position_embeddings", 2**31))

    def logits(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return float32 ``[R, vocabulary]``: the logits after each of the ``places`` [R] in the
        flattened ``ids`` [sequences, length], which are padded at their right ends."""
        self._places = places
        with torch.autocast(self._device, dtype=torch.bfloat16, enabled=self._bfloat16):
            logits: torch.Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits.float()

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Return the weights that are trained, by name."""
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def adapt(self, rank: int) -> None:
        """Freeze the weights, and put adapters (LoRA) of a rank beside all matrices but the output
        matrix. DistilError if they cannot be made."""
        if command := missing("distill"):
            raise DistilError(f"--lora-rank needs peft, which is not installed: {command}")
        from peft import LoraConfig, LoraModel  # this import takes seconds

        try:
            config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
            self._adapted = LoraModel(self.model, config, _ADAPTER)
        except ValueError as error:
            raise DistilError(
                f"--lora-rank: {type(self.model).__name__} takes no adapters: {one_line(error)}"
            ) from error

    @torch.no_grad()
    def settle(self) -> None:
        """Merge the adapters, and round the weights to the type in which they are stored."""
        if self._adapted is not None:
            self.model = self._adapted.merge_and_unload()
        for weight in self.model.parameters():
            weight.copy_(weight.to(self.stored_type))

    def _choose(self, _: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        (hidden,) = arguments
        return (hidden.reshape(-1, hidden.shape[-1])[self._places],)


def draft_directory(name: str) -> Path:
    """Return a draft's folder; ``embedded`` is the one in the package. UnsupportedModelError."""
    return embedded_directory("draft") if name == "embedded" else directory_of(name, weights=True)
