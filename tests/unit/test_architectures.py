"""Each architecture through the paged engine against transformers' own generate; what cannot be served is refused."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from slipstream.engine.engine import Append, Engine
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.sequence import Sequence
from slipstream.engine.transformers_model import TransformersModel
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models

NEW_TOKENS = 40


def gemma2() -> Gemma2ForCausalLM:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=128,
        sliding_window=24,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=2.0,
        initializer_range=0.2,
    )
    return Gemma2ForCausalLM(config).eval()


def mistral() -> MistralForCausalLM:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=128,
        sliding_window=24,
        initializer_range=0.2,
    )
    return MistralForCausalLM(config).eval()


BUILDERS = {
    "llama": lambda: tiny_models.build("llama"),
    "qwen2": lambda: tiny_models.build("qwen2"),
    "gpt2": lambda: tiny_models.build("gpt2"),
    "mistral": mistral,
    "gemma2": gemma2,
}


def generate(engine: Engine, prompt: list[int], window: int) -> list[int]:
    """Greedy tokens; each forward appends up to ``window`` guesses, of which the last is always wrong."""
    sequence = Sequence("a")
    tokens = list(prompt)
    while len(tokens) < len(prompt) + NEW_TOKENS:
        tail = tokens[len(sequence) :]
        guesses = [(tokens[-1] + i) % 512 for i in range(window)]
        engine.cache.extend(sequence, [*tail, *guesses])
        choices = engine.step([Append(sequence, len(tail) + len(guesses), len(guesses) + 1, SamplingRule())])[0]
        tokens.append(choices[0].token)
        engine.cache.truncate(sequence, len(tokens) - 1)
    return tokens[len(prompt) :]


@pytest.mark.parametrize("family", sorted(BUILDERS))
def test_greedy_tokens_equal_transformers(family: str, tmp_path: Path) -> None:
    BUILDERS[family]().save_pretrained(tmp_path)
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    engine = Engine(TransformersModel.load(str(tmp_path), device="cpu", dtype="float32"), kv_memory_mib=8)
    rng = random.Random(0)
    for length, window in ((5, 0), (40, 3), (90, 7)):
        prompt = [rng.randrange(3, 500) for _ in range(length)]
        ids = torch.tensor([prompt])
        expected = oracle.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
        )
        assert generate(engine, prompt, window) == expected[0, length:].tolist()


def refused(directory: Path) -> str:
    with pytest.raises(UnsupportedModelError) as caught:
        TransformersModel.load(str(directory), device="cpu", dtype="float32")
    return str(caught.value)


def test_a_missing_directory_is_named() -> None:
    assert refused(Path("/no/such/model")) == "there is no model directory /no/such/model"


def test_a_directory_that_is_no_model_is_named(tmp_path: Path) -> None:
    assert "has no config.json" in refused(tmp_path)


def test_an_encoder_decoder_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = {"model_type": "t5", "is_encoder_decoder": True, "architectures": ["T5ForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "T5ForConditionalGeneration is an encoder-decoder" in refused(tmp_path)


def test_recurrent_state_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2}
    config |= {"vocab_size": 64, "state_size": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    AutoModelForCausalLM.from_config(__import__("transformers").AutoConfig.from_pretrained(tmp_path)).save_pretrained(
        tmp_path
    )
    assert "Mamba" in refused(tmp_path)
