"""A rank's part of a model, with what it needs to be served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.torch import attention
from slipstream.engine.torch.parallel.division import Division
from slipstream.engine.torch.parallel.rank_group import RankGroup
from slipstream.engine.torch.transformers_model import TransformersModel, Whole


class Loaded(NamedTuple):
    """A ``PreTrainedModel`` with a rank's part of the weights, and facts about the whole model."""

    name: str
    model: Any
    generation: Mapping[str, Any]
    division: Division
    whole: Whole

    def served(
        self, group: RankGroup, *, single_rows: bool = False, kernels: attention.Kernels = attention.GATHERED
    ) -> TransformersModel:
        """Return it over paged KV. UnsupportedModelError if it cannot be served."""
        try:
            model = TransformersModel(
                self.model, self.generation, single_rows=single_rows, kernels=kernels, whole=self.whole
            )
        except UnsupportedModelError as error:  # perhaps of its part alone: a norm over all heads
            raise UnsupportedModelError(f"{error}; or try --tensor-parallel-size 1") from error
        if group.rank == 0:
            model.generation.log_warnings(self.name)
        return model
