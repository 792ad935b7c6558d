"""Which backend computes a model, and what is said where it is not the one that was asked for."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model import Backend
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.hosting.backends import backend_of
from slipstream.hosting.settings import ModelServiceSettings
from tests import tiny_models


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(tiny_models.build("llama", head_dim=32), tmp_path_factory.mktemp("llama"))


def backend_for(model: Path, *, exact: bool = True, **settings: Any) -> Backend:
    read = ModelServiceSettings.model_construct(
        **{"model": str(model), "device": "cpu", "dtype": "float32", "engine": "auto", "page_size": 16, **settings}
    )
    return backend_of(read, str(model), exact=exact)


def test_compiled_code_is_taken_where_it_can_be(llama: Path) -> None:
    assert isinstance(backend_for(llama), CompiledBackend)
    assert isinstance(backend_for(llama, engine="torch"), PlannedBackend)
    assert backend_for(llama).mark != backend_for(llama, engine="torch").mark
    bits = {backend_for(llama, dtype=dtype).mark for dtype in ("float32", "bfloat16")}
    assert len(bits) == 2


def test_two_backends_of_one_model_are_never_taken_for_one_another(llama: Path) -> None:
    fingerprints = {backend_for(llama, engine=engine).model.weights_fingerprint for engine in ("compiled", "torch")}
    assert len(fingerprints) == 2


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("gemma2", {}, "Gemma2ForCausalLM is none of"),
        ("llama", {}, "head size 16 is no multiple of 32"),
        ("llama", {"page_size": 8}, "its pages are to have 8 tokens, no multiple of 16"),
    ],
)
def test_torch_computes_what_compiled_code_does_not_unless_that_was_insisted_on(
    family: str, settings: dict[str, Any], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = tiny_models.save(tiny_models.build(family), tmp_path)
    assert isinstance(backend_for(model, **settings), PlannedBackend)
    assert f"torch computes {model}: " in caplog.text and reason in caplog.text
    with pytest.raises(UnsupportedModelError, match=f"cannot be computed by --engine compiled: .*{reason}"):
        backend_for(model, engine="compiled", **settings)


def test_experts_outside_transformers_interface_are_on_trial_at_load(tmp_path: Path) -> None:
    """JetMoE gives each expert the rows that chose it, and no more."""
    sizes = {"kv_channels": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "hidden_size": 256}
    model = tiny_models.save(tiny_models.build("jetmoe", **tiny_models.SHAPE | sizes), tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"JetMoeForCausalLM in float32 on cpu: a row's numbers depend on"):
        backend_for(model, threads=1).reserve(4)
    assert backend_for(model, threads=1, exact=False).reserve(4).page_count  # a draft only guesses
