"""Loads heads of any kind from a folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.heads.eagle3_config import is_eagle3
from slipstream.engine.heads.eagle3_loading import load_eagle3
from slipstream.engine.heads.files import HeadTarget, read_config
from slipstream.engine.heads.medusa import load_medusa
from slipstream.engine.heads.medusa_config import is_medusa
from slipstream.engine.hidden_heads import HiddenHeads

log = logging.getLogger(__name__)

FINGERPRINT = "target_fingerprint"
"""Key of config.json for the weights' fingerprint of the target that heads were trained for."""

Load = Callable[[Path, Mapping[str, Any], HeadTarget], HiddenHeads]

_KINDS: list[tuple[Callable[[Mapping[str, Any]], bool], Load]] = [
    (is_medusa, load_medusa),
    (is_eagle3, load_eagle3),
]
"""For each kind of heads: whether a config.json is of it, and what loads it."""


def load_heads(directory: Path, target: HeadTarget) -> HiddenHeads:
    """Load the heads of a folder for a target. UnsupportedModelError says what does not fit."""
    values = read_config(directory)
    trained_for = values.pop(FINGERPRINT, None)
    load = next((load for is_kind, load in _KINDS if is_kind(values)), None)
    if load is None:
        said = values.get("speculators_model_type") or values.get("model_type") or values.get("architectures")
        raise UnsupportedModelError(f"--heads {directory} holds {said!r}: heads are Medusa or EAGLE-3")
    heads = load(directory, values, target)
    if trained_for is not None and trained_for != target.facts.weights_fingerprint:
        log.warning(
            "the heads of %s were trained for another target (%s, this is %s): their hints may be worse",
            directory,
            trained_for,
            target.facts.weights_fingerprint,
        )
    return heads
