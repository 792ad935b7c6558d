"""Random-weight models of a few thousand parameters, saved as transformers directories with the embedded tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from slipstream.hosting.tokenizer_files import embedded_directory

VOCABULARY_SIZE = 4096
_SHAPE = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,  # else every context says nearly the same
}


def build(family: str, seed: int = 0) -> PreTrainedModel:
    """A tiny model of a family: ``llama``, ``qwen2`` or ``gpt2``."""
    torch.manual_seed(seed)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**_SHAPE)).eval()
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**_SHAPE)).eval()
    assert family == "gpt2"
    config = GPT2Config(
        vocab_size=VOCABULARY_SIZE,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=1024,
        bos_token_id=None,
        eos_token_id=2,
        initializer_range=0.2,
    )
    return GPT2LMHeadModel(config).eval()


def save(model: PreTrainedModel, directory: Path) -> Path:
    """A model directory, tokenizer included."""
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(embedded_directory("target") / name, directory / name)
    return directory


def perturbed(model: PreTrainedModel, scale: float, seed: int = 1) -> PreTrainedModel:
    """The same model with noise on its weights: a draft that agrees often, not always."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += torch.randn(weight.shape, generator=generator) * weight.std(correction=0) * scale
    return model
