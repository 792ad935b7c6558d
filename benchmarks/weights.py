"""Files of models that benchmarks make and convert."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path


def digest_of(*models: Path) -> str:
    """Return a digest of models' weights, which tells two models of the same name apart."""
    digest = hashlib.sha256()
    for model in models:
        for path in sorted(model.glob("*.safetensors")):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


def copy_all_but_weights(source: Path, model: Path) -> None:
    """Copy the tokenizer, chat template and generation settings from the source model to a
    ``model`` that lacks them."""
    for path in source.iterdir():
        if not (model / path.name).exists() and path.suffix != ".safetensors":
            shutil.copy(path, model / path.name)
