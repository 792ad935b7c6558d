"""The model that is meant in vLLM's list of models."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.engine.errors import UnsupportedModelError
from slipstream.stock.vllm_models import find_model

BASE = {"id": "llama", "root": "/models/llama", "parent": None, "max_model_len": 4096}
ALIAS = BASE | {"id": "prod"}
OTHER = {"id": "qwen", "root": "/models/qwen", "parent": None, "max_model_len": 8192}
ADAPTER = {"id": "sql", "root": "/adapters/sql", "parent": "llama", "max_model_len": None}


@pytest.mark.parametrize(
    ("cards", "model", "served_as", "found"),
    [
        ([BASE], "/models/llama", "", ("llama", 4096)),
        ([BASE], "/another/place", "", ("llama", 4096)),
        ([BASE, ALIAS], "/another/place", "", ("llama", 4096)),
        ([BASE, ALIAS], "prod", "", ("prod", 4096)),
        ([BASE, ALIAS], "/another/place", "prod", ("prod", 4096)),
        ([BASE, ADAPTER], "/another/place", "", ("llama", 4096)),
        ([BASE, ADAPTER], "/models/llama", "sql", ("sql", 4096)),
        ([BASE, ADAPTER], "/adapters/sql", "", ("sql", 4096)),
        ([OTHER, BASE], "/models/llama", "", ("llama", 4096)),
        ([OTHER, BASE], "/another/place", "qwen", ("qwen", 8192)),
    ],
)
def test_a_model_is_found_by_its_name_its_path_or_as_the_only_one(
    cards: list[dict[str, Any]], model: str, served_as: str, found: tuple[str, int]
) -> None:
    assert find_model(cards, model, served_as) == found


@pytest.mark.parametrize(
    ("cards", "served_as", "message"),
    [
        ([], "", "vLLM serves no model, and --model is /x"),
        ([BASE, OTHER], "", "vLLM serves llama, qwen, and --model is /x: give the name .* as --engine-model"),
        ([BASE], "lama", "vLLM serves llama, and --engine-model is lama"),
        ([{"id": "llama", "root": "/x"}], "", "does not tell the max_model_len of llama"),
    ],
)
def test_what_is_not_there_is_named(cards: list[dict[str, Any]], served_as: str, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        find_model(cards, "/x", served_as)
