"""Tests on real models and real tokenizer files, which are fetched into build/: ``make test-real``
runs them, and nothing else does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.real.files import fetched_tokenizers
from tools.fetch_model import fetch

MARK = "real"


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Mark the tests of this folder, and skip them unless that mark is asked for."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(MARK)
            if config.option.markexpr != MARK:
                item.add_marker(pytest.mark.skip(reason="make test-real fetches real models and runs it"))


@pytest.fixture(scope="session")
def tokenizers() -> Path:
    """A folder with a directory of files for each of `tests.real.files.MODEL_TYPES`."""
    return fetched_tokenizers()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    return fetch("smollm2", Path(__file__).parents[2] / "build" / "models")
