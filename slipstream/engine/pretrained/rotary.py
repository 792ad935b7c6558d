"""Rotary positions whose frequencies depend on the longest position of a step, and so on what else
is in it.

transformers chooses `longrope`'s factors in each forward: the long ones for all rows once any
position is beyond ``original_max_position_embeddings``. Up to there the short ones always hold, so
that is where the context ends here. `dynamic` frequencies change only beyond
``max_position_embeddings``, where the context ends anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream.engine import config_numbers
from slipstream.engine.errors import UnsupportedModelError

log = logging.getLogger(__name__)

_STEADY = {"default", "linear", "yarn", "llama3", "proportional"}
"""Types whose frequencies are a function of the position alone."""


def steady_context_length(config: Any, context_length: int) -> int:
    """Return the longest context, at most ``context_length``, in which no frequency depends on the
    step.

    ``config`` is the text model's. UnsupportedModelError for an unknown type of rotary
    positions.
    """
    steady = context_length
    for parameters in _parameters(getattr(config, "rope_parameters", None)):
        kind = str(parameters.get("rope_type", "default"))
        if kind in _STEADY:
            continue
        if kind == "longrope":
            original = parameters.get("original_max_position_embeddings")
            steady = min(steady, int(original or context_length))
        elif kind == "dynamic":
            steady = min(steady, int(config.max_position_embeddings))
        else:
            known = ", ".join(sorted(_STEADY | {"longrope", "dynamic"}))
            raise UnsupportedModelError(
                f"{type(config).__name__} has rotary positions of type {kind}, which may depend on what else is in a forward; "
                f"only {known} can be served"
            )
    if steady < context_length:
        log.warning(
            "the context ends at %d tokens, not %d: beyond, rotary positions change by step", steady, context_length
        )
    return steady


def odd_position(config: Any) -> str | None:
    """Return the first entry of the rotary positions of a text model's config that gives no
    frequencies, as text; None if there is no such entry."""
    parameters = vars(config).get("rope_parameters")  # an attribute that differs by layer cannot be asked for
    if not isinstance(parameters, Mapping):
        return None
    return next(filter(None, map(config_numbers.odd_position, _parameters(parameters))), None)


def _parameters(said: Any) -> Iterator[Mapping[str, Any]]:
    """The model's, or where they differ each kind of layer's."""
    parameters = said or {}
    if "rope_type" in parameters:
        yield parameters
    else:
        yield from (value for value in parameters.values() if isinstance(value, Mapping))
