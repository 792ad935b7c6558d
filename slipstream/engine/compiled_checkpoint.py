"""Loads a checkpoint for compiled forwards, by our own reader where that knows all of its
config.json, and else by transformers where that is installed."""

from __future__ import annotations

import logging

from slipstream.engine.checkpoint import NO_TRUST, Trust, refuse_without_torch
from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.loading import UnknownConfigError, load_compiled

log = logging.getLogger(__name__)


def load_compiled_checkpoint(
    name: str, *, dtype: str, page_size: int, single_rows: bool, threads: int, trust: Trust = NO_TRUST
) -> CompiledBackend:
    """Load a model directory or hub id. NotCompiledError if another backend has to serve it,
    UnsupportedModelError if none can."""
    try:
        return load_compiled(
            name, dtype=dtype, page_size=page_size, single_rows=single_rows, threads=threads, trust=trust
        )
    except UnknownConfigError as reason:
        refuse_without_torch(name, str(reason))
        log.info("transformers reads %s: %s", name, reason)
    from slipstream.engine.compiled_from_transformers import load_compiled_by_transformers

    return load_compiled_by_transformers(
        name, dtype=dtype, page_size=page_size, single_rows=single_rows, threads=threads, trust=trust
    )
