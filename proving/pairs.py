"""The pairs that are served: the embedded one, and one of random weights.

Random weights spread their probability over many tokens whose logits lie close together, so that a single wrong bit soon
shows as another token; and they are small, so that nine tenths of ten thousand prompts are affordable. The embedded pair is
trained and has real sizes.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from slipstream.hosting.tokenizer_files import embedded_directory

EMBEDDED, RANDOM_WEIGHTS = "embedded pair", "random weights"
PAIRS = (EMBEDDED, RANDOM_WEIGHTS)

_DISAGREEMENT = 0.1


@dataclass(frozen=True, slots=True)
class Pair:
    """Model directories of one tokenizer."""

    target: Path
    draft: Path

    def kv_bytes_per_token(self, dtype: str) -> int:
        """KV bytes that one token takes in the target."""
        config = AutoConfig.from_pretrained(self.target)
        size = int(config.head_dim) * int(config.num_key_value_heads) * int(config.num_hidden_layers)
        return 2 * size * {"float32": 4, "bfloat16": 2}[dtype]


def prepare(directory: Path) -> None:
    """Make the random pair in a run's directory, unless it is there. The same weights each time."""
    pair = pair_named(RANDOM_WEIGHTS, directory)
    if not (pair.draft / "config.json").exists():
        torch.manual_seed(0)
        model = LlamaForCausalLM(_CONFIG).eval()
        save(model, pair.target)
        save(perturbed(model, _DISAGREEMENT), pair.draft)


def perturbed(model: PreTrainedModel, scale: float, seed: int = 1) -> PreTrainedModel:
    """The same model with noise on its weights, in standard deviations of each: a draft that agrees often, not always."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += torch.randn(weight.shape, generator=generator) * weight.std(correction=0) * scale
    return model


def save(model: PreTrainedModel, directory: Path) -> Path:
    """A model directory with the embedded pair's tokenizer."""
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(embedded_directory("target") / name, directory / name)
    return directory


def pair_named(name: str, directory: Path) -> Pair:
    """A pair by its name; ``directory`` is the run's."""
    if name == EMBEDDED:
        return Pair(embedded_directory("target"), embedded_directory("draft"))
    return Pair(directory / "random-target", directory / "random-draft")


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
