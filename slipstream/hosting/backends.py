"""Chooses the backend that computes a model. Each is imported only where it is needed: torch and
transformers take seconds, and may not be installed."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slipstream.engine.arithmetic import SCHEME, ArithmeticBackend, ArithmeticSettings
from slipstream.engine.checkpoint import directory_of, is_quantised, refuse_without_torch
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model import Backend
from slipstream.home import expanded
from slipstream.hosting.ranks.local_ranks import LocalRanks
from slipstream.hosting.ranks.sharding import leading_backend
from slipstream.hosting.settings import ModelServiceSettings
from slipstream.hosting.tokenizer_files import is_gguf
from slipstream.sampling.choose import warm as warm_choosing
from slipstream.sampling.kernel import Floats32
from slipstream.sampling.sharing import choose_with
from slipstream.threads import default_threads

if TYPE_CHECKING:
    from slipstream.engine.llamacpp.backend import LlamaCppBackend
    from slipstream.engine.pretrained.quantisation import Quantisation

log = logging.getLogger(__name__)

_LARGEST_PAGE = 128

_LLAMACPP = ("llama_cpp", "xllamacpp")
"""Packages that hold llama.cpp."""


def backend_of(settings: ModelServiceSettings, name: str, *, exact: bool, ranks: LocalRanks | None = None) -> Backend:
    """Return the backend of a model: a paper model, a .gguf file, a directory or a hub id.

    With ``exact`` a row's bits depend on its sequence alone. Where several ``ranks`` share the
    model, this process is rank 0. UnsupportedModelError.
    """
    if _LARGEST_PAGE % settings.page_size and not is_gguf(name):
        raise UnsupportedModelError(f"page_size must divide {_LARGEST_PAGE}, but is {settings.page_size}")
    if settings.bits_at_load and (is_gguf(name) or name.startswith(SCHEME) or settings.tensor_parallel_size > 1):
        raise UnsupportedModelError(
            f"--quantize {settings.bits_at_load} is for a checkpoint on one rank, not for {name}"
        )
    if ranks is not None and ranks.place.size > 1:
        return leading_backend(settings, name, exact=exact, ranks=ranks)
    if name.startswith(SCHEME):
        return ArithmeticBackend(ArithmeticSettings.parse(name), page_size=settings.page_size, single_rows=not exact)
    if is_gguf(name):
        return _of_gguf(settings, name, exact)
    if settings.engine == "llamacpp":
        raise UnsupportedModelError(f"--engine llamacpp serves only .gguf files, and {name} is not one")
    log.info("loading %s as %s on %s", name, settings.dtype, settings.device)
    if not exact and (settings.bits_at_load or is_quantised(name, settings.trust())):
        return _quantised_draft(settings, name)
    if settings.engine == "torch":
        return _by_torch(settings, name, exact)
    backend = _compiled(settings, name, exact)
    return backend or _by_torch(settings, name, exact)


def _of_gguf(settings: ModelServiceSettings, name: str, exact: bool) -> Backend:
    if settings.device != "cpu":
        raise UnsupportedModelError(f"GGUF models are served on the cpu, but --device is {settings.device!r}")
    if settings.engine == "torch":
        raise UnsupportedModelError(f"--engine torch serves checkpoints, and {name} is a .gguf file")
    log.info("loading %s", name)
    path = expanded(name)
    backend = None if settings.engine == "llamacpp" else _compiled_gguf(settings, path, exact)
    return backend or _by_llamacpp(settings, path, exact=exact)


def _by_llamacpp(settings: ModelServiceSettings, path: Path, *, exact: bool) -> LlamaCppBackend:
    from slipstream.engine.llamacpp.backend import LlamaCppBackend

    return LlamaCppBackend(path, threads=_threads(settings), most_tokens=settings.max_step_tokens, exact=exact)


def _compiled_gguf(settings: ModelServiceSettings, path: Path, exact: bool) -> Backend | None:
    """Return None if compiled forwards cannot compute a GGUF file; UnsupportedModelError if they
    were asked for, or if llama.cpp is not installed.

    A target's weights are dequantised if no kernel reads their type, because llama.cpp's bits are
    not promised for such types. A draft's are dequantised only if llama.cpp is not installed.
    """
    from slipstream.engine.compiled.loading import NotCompiledError, load_compiled_gguf

    has_llamacpp = any(find_spec(package) for package in _LLAMACPP)

    def reference(tokens: list[int]) -> Floats32:
        return _by_llamacpp(settings, path, exact=False).logits_of(tokens)

    try:
        return load_compiled_gguf(
            path,
            page_size=settings.page_size,
            single_rows=not exact,
            threads=_threads(settings),
            reference=reference if has_llamacpp else None,
            dequantise_to=settings.dtype if exact or not has_llamacpp else None,
        )
    except NotCompiledError as reason:
        if settings.engine == "compiled":
            raise UnsupportedModelError(f"{path} cannot be computed by --engine compiled: {reason}") from reason
        if not has_llamacpp:
            from slipstream.engine.llamacpp.libllama import INSTALL

            raise UnsupportedModelError(f"{path} needs llama.cpp, for {reason}: {INSTALL}") from reason
        log.info("llama.cpp computes %s: %s", path, reason)
        return None


def _compiled(settings: ModelServiceSettings, name: str, exact: bool) -> Backend | None:
    """Return None if compiled forwards cannot compute a model; UnsupportedModelError if they were
    asked for."""
    from slipstream.engine.compiled.decoder import NotCompiledError
    from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint

    try:
        if settings.device != "cpu":
            raise NotCompiledError(f"--device is {settings.device!r}")
        return load_compiled_checkpoint(
            name,
            dtype=settings.dtype,
            page_size=settings.page_size,
            single_rows=not exact,
            threads=_threads(settings),
            trust=settings.trust(),
        )
    except NotCompiledError as reason:
        if settings.engine == "compiled":
            raise UnsupportedModelError(f"{name} cannot be computed by --engine compiled: {reason}") from reason
        refuse_without_torch(name, str(reason))
        log.info("torch computes %s: %s", name, reason)
        return None


def _threads(settings: ModelServiceSettings) -> int:
    """Return the threads that compute, which choose tokens too."""
    threads = settings.threads or default_threads()
    choose_with(threads)
    return threads


def _quantised_draft(settings: ModelServiceSettings, name: str) -> Backend:
    """Return the backend of a draft whose quantised weights transformers computes with."""
    refuse_without_torch(name, "quantised weights")
    from slipstream.engine.pretrained.quantisation import quantisation_of

    if settings.engine == "compiled":
        raise UnsupportedModelError(f"{name} cannot be computed by --engine compiled: its weights are quantised")
    directory = directory_of(name, weights=False, trust=settings.trust())
    quantisation = quantisation_of(directory, settings.bits_at_load, name)
    if quantisation is not None:
        quantisation.refuse(name, settings.device)
    return _by_torch(settings, name, False, quantisation)


def _by_torch(
    settings: ModelServiceSettings, name: str, exact: bool, quantisation: Quantisation | None = None
) -> Backend:
    refuse_without_torch(name, "--engine torch")
    import torch

    from slipstream.engine.torch.plan import BATCH_INVARIANT, TIGHT
    from slipstream.engine.torch.planned_backend import PlannedBackend
    from slipstream.engine.torch.transformers_model import TransformersModel

    torch.set_num_threads(_threads(settings))
    if settings.dtype == "bfloat16":
        warm_choosing(np.int16)
    if settings.device.startswith("cuda"):
        return _by_cuda(settings, name, exact, quantisation)
    model = TransformersModel.load(
        name,
        device=settings.device,
        dtype=settings.dtype,
        single_rows=not exact,
        trust=settings.trust(),
        quantisation=quantisation,
    )
    padding = BATCH_INVARIANT if exact else TIGHT
    on_trial = exact and model.needs_trial
    return PlannedBackend(model, page_size=settings.page_size, padding=padding, on_trial=on_trial)


def _by_cuda(settings: ModelServiceSettings, name: str, exact: bool, quantisation: Quantisation | None) -> Backend:
    import torch

    if not torch.cuda.is_available():
        raise UnsupportedModelError(
            f"--device is {settings.device!r}, but torch {torch.__version__} finds no CUDA device here"
        )
    from slipstream.engine.torch.cuda.backend import load_cuda

    return load_cuda(
        name,
        device=settings.device,
        dtype=settings.dtype,
        page_size=settings.page_size,
        exact=exact,
        trust=settings.trust(),
        quantisation=quantisation,
    )
