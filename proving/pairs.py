"""The pairs of the proof: the embedded one, and one of random weights.

Random weights spread their probability over many tokens with similar logits, so a single wrong bit
soon shows as another token. They are small, so nine tenths of ten thousand prompts are affordable.
The embedded pair is trained and has real sizes.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from benchmarks.llamacpp_models import convert
from slipstream.hosting.tokenizer_files import embedded_directory

COMPILED, TORCH, LLAMACPP, GGUF, CUDA, RANKS = "compiled", "torch", "llamacpp", "gguf", "cuda", "ranks"
TWO_VOCABULARIES = "two-vocabularies"
BACKENDS = (COMPILED, TORCH, LLAMACPP, GGUF, CUDA, RANKS, TWO_VOCABULARIES)
"""Backends of the target and the draft. ``gguf`` is compiled code with GGUF files, ``cuda`` is
torch on a GPU, and ``ranks`` is torch on two ranks, with a compiled draft. ``two-vocabularies`` is
compiled code with a draft that has another vocabulary than the target."""

OTHER_VOCABULARY = Path(__file__).parent / "other_vocabulary"
"""Directory of a draft that was trained with 2,048 tokens of its own: see
training/other_vocabulary.py."""

RANK_COUNT = 2

EMBEDDED, RANDOM_WEIGHTS = "embedded pair", "random weights"
PAIRS = (EMBEDDED, RANDOM_WEIGHTS)

_DISAGREEMENT = 0.1

_GGUF_TYPES = {
    LLAMACPP: {"float32": "F32", "bfloat16": "BF16"},
    GGUF: {"float32": "Q8_0", "bfloat16": "BF16"},  # what is in eight bits is computed in float32
}
_GGUF_DRAFT_TYPES = {LLAMACPP: "Q4_0", GGUF: "Q8_0"}
"""Types of a GGUF draft's weights, by backend."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft, by directory or GGUF file, the target's dtype, and the
    backends."""

    target: Path
    draft: Path
    config: Path
    """Directory of the target's config.json."""
    dtype: str
    backend: str

    def kv_bytes_per_token(self) -> int:
        """KV bytes of one token in the target, or in a rank's part of it."""
        config = AutoConfig.from_pretrained(self.config)
        heads = ceil(int(config.num_key_value_heads) / (RANK_COUNT if self.backend == RANKS else 1))
        size = int(config.head_dim) * heads * int(config.num_hidden_layers)
        return 2 * size * (2 if self.dtype == "bfloat16" and self.backend != LLAMACPP else 4)


def prepare(directory: Path, backend: str) -> None:
    """Make the random pair in a run's directory, and a backend's files, if they are missing. The
    weights are the same each time."""
    target, draft = _directories(RANDOM_WEIGHTS, directory)
    if not (draft / "config.json").exists():
        torch.manual_seed(0)
        model = LlamaForCausalLM(_CONFIG).eval()
        save(model, target)
        save(perturbed(model, _DISAGREEMENT), draft)
    if backend in _GGUF_TYPES:
        types, draft_type = _GGUF_TYPES[backend], _GGUF_DRAFT_TYPES[backend]
        for name in PAIRS:
            for dtype in types:
                pair = pair_named(name, directory, dtype, backend)
                models = _directories(name, directory)
                for model, file in zip(models, (pair.target, pair.draft), strict=True):
                    if not file.exists():
                        convert(model, file, types[dtype] if file == pair.target else draft_type)


def perturbed(model: PreTrainedModel, scale: float, seed: int = 1) -> PreTrainedModel:
    """Return the same model with noise on its weights, in standard deviations of each. As a draft
    it agrees often, but not always."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += torch.randn(weight.shape, generator=generator) * weight.std(correction=0) * scale
    return model


def save(model: PreTrainedModel, directory: Path) -> Path:
    """Write a model directory with the embedded pair's tokenizer."""
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(embedded_directory("target") / name, directory / name)
    return directory


def pair_named(name: str, directory: Path, dtype: str, backend: str) -> Pair:
    """Return a pair by its name. ``directory`` is the run's."""
    target, draft = _directories(name, directory)
    if backend == TWO_VOCABULARIES:
        return Pair(target, OTHER_VOCABULARY, target, dtype, COMPILED)
    if backend not in _GGUF_TYPES:
        return Pair(target, draft, target, dtype, backend)
    files = directory / "gguf" / name.replace(" ", "-")
    return Pair(files / f"target-{dtype}.gguf", files / "draft.gguf", target, dtype, backend)


def _directories(name: str, directory: Path) -> tuple[Path, Path]:
    if name == EMBEDDED:
        return embedded_directory("target"), embedded_directory("draft")
    return directory / "random-target", directory / "random-draft"


_CONFIG = LlamaConfig(
    vocab_size=4096,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=256,
    max_position_embeddings=4096,
    bos_token_id=None,
    eos_token_id=2,
    pad_token_id=0,
    initializer_range=0.2,  # else every context says nearly the same
)
