"""The heads of a target, from the service's settings."""

from __future__ import annotations

import logging

from slipstream.engine.checkpoint import directory_of
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.heads.files import HeadTarget
from slipstream.engine.heads.loading import load_heads
from slipstream.engine.hidden_heads import HiddenHeads
from slipstream.engine.model import Backend
from slipstream.home import expanded
from slipstream.hosting.tokenizer_files import is_gguf
from verifier_service.settings import VerifierSettings

log = logging.getLogger(__name__)


def heads_of(settings: VerifierSettings, name: str, backend: Backend) -> HiddenHeads | None:
    """Return the heads that ``--heads`` names, for the backend of a model; None without.
    UnsupportedModelError."""
    if not settings.heads:
        return None
    if backend.hidden_states is None:
        raise UnsupportedModelError(
            f"--heads needs the hidden states of {name}, which its engine does not give: heads are served by "
            "--engine compiled and by --engine torch --device cpu, with --tensor-parallel-size 1"
        )
    directory = None if is_gguf(name) else directory_of(name, weights=True, trust=settings.trust())
    target = HeadTarget(backend.model, backend.hidden_states, directory)
    heads = load_heads(expanded(settings.heads), target)
    log.info("loaded %s heads of %s", heads.kind, settings.heads)
    return heads
