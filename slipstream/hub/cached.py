"""Models in the hub's cache on this machine, and which engine would serve each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from slipstream.engine.checkpoint import CONFIG, check_config, check_weights, quantisation_in
from slipstream.engine.compiled.checkpoint_config import FAMILIES
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.gguf_metadata import read_metadata


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model as a revision of its repository has it."""

    name: str
    """Name for ``--target`` and ``--draft``: a hub id, or the path of a GGUF file."""
    repository: str
    revision: str
    """Branch or tag, or else the commit."""
    byte_count: int
    kind: str
    """"safetensors", "GGUF" or "none" if the cache has no weights of it."""
    served_by: str
    """Engine that would serve it, by its files' headers; empty if none would."""
    refusal: str = ""
    """Reason why no engine would serve it."""
    draft_only: bool = False
    """True if it is served as a draft, and not as a target: its weights are quantised."""


def cached_models() -> Sequence[CachedModel]:
    """Return the models in the cache, by name."""
    try:
        found = scan_cache_dir()
    except CacheNotFound:
        return []
    models = [
        model
        for repository in found.repos
        if repository.repo_type == "model"
        for revision in repository.revisions
        for model in _models(repository.repo_id, revision)
    ]
    return sorted(models, key=lambda model: (model.repository, model.name, model.revision))


def _models(repository: str, revision: Any) -> Iterator[CachedModel]:
    directory = Path(revision.snapshot_path)
    refs = sorted(revision.refs)
    name = repository if "main" in refs else str(directory)
    said = refs[0] if refs else revision.commit_hash[:12]
    sizes = {Path(file.file_path): file.size_on_disk for file in revision.files}
    ggufs = [path for path in sizes if path.suffix == ".gguf" and "-of-" not in path.name]
    ggufs += [path for path in sizes if path.suffix == ".gguf" and "-00001-of-" in path.name]
    for path in sorted(ggufs):
        engine, refusal = _gguf_engine(path)
        parts = [size for other, size in sizes.items() if _is_part(other, path)]
        yield CachedModel(str(path), repository, said, sum(parts), "GGUF", engine, refusal)
    if ggufs:
        return
    engine, refusal = _checkpoint_engine(directory, repository)
    kind = "safetensors" if any(path.suffix == ".safetensors" for path in sizes) else "none"
    draft_only = bool(engine) and quantisation_in(directory) is not None
    yield CachedModel(name, repository, said, sum(sizes.values()), kind, engine, refusal, draft_only)


def _is_part(path: Path, first: Path) -> bool:
    """Return whether a file belongs to the GGUF model with a first file."""
    stem, split, _ = first.name.partition("-00001-of-")
    return path == first or (bool(split) and path.name.startswith(f"{stem}-"))


def _checkpoint_engine(directory: Path, name: str) -> tuple[str, str]:
    """Return the engine that would serve a checkpoint, or an empty one with what is wrong."""
    try:
        quantised = quantisation_in(directory) is not None
        check_config(directory, name, quantised=quantised)
        check_weights(directory, name, quantised=quantised)
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (UnsupportedModelError, OSError, ValueError) as error:
        return "", str(error)
    if config["model_type"] in FAMILIES and not quantised:
        return "compiled", ""
    if any(str(one).endswith(("ForCausalLM", "LMHeadModel")) for one in config.get("architectures") or ()):
        return "torch", ""
    return "", f"{name} is no decoder-only language model, by the architectures in its {CONFIG}"


def _gguf_engine(path: Path) -> tuple[str, str]:
    try:
        architecture = read_metadata(path).get("general.architecture")
    except (UnsupportedModelError, OSError) as error:
        return "", str(error)
    return ("compiled" if architecture in ("llama", "qwen2", "qwen3") else "llamacpp"), ""
