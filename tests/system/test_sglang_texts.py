"""A pair whose target is computed behind SGLang's API gives the texts of a pair that our own engine
computes: the same weights, the same prompts, with hints of each kind."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.sampling.softmax import log_softmax
from tests.fake_sglang import FakeSGLang
from tests.fake_vllm import MODEL

ASKED = "<|im_start|>user\nTell me a story about a small ship.<|im_end|>\n<|im_start|>assistant\n"
PROMPT = Tokenizer.from_file(f"{MODEL}/tokenizer.json").encode(ASKED).ids
COUNT = 40
RULES = [
    Settings(temperature=0.0, max_token_count=COUNT),
    Settings(temperature=0.8, seed=3, max_token_count=COUNT),
    Settings(temperature=1.2, seed=4, top_p=0.9, top_k=60, max_token_count=COUNT),
]


class RowsOfAModel:
    """Log-probabilities of the embedded target in float32, by transformers. A text's rows are
    computed once."""

    def __init__(self) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self._known: dict[tuple[int, ...], NDArray[np.float32]] = {}
        self._lock = threading.Lock()

    def __call__(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        with self._lock, torch.inference_mode():
            if tuple(tokens) not in self._known:
                logits = self._model(torch.tensor([tokens])).logits[0].numpy()
                for end in range(1, len(tokens) + 1):
                    if tuple(tokens[:end]) not in self._known:
                        self._known[tuple(tokens[:end])] = log_softmax(logits[end - 1])
            return self._known[tuple(tokens)]


@pytest.fixture(scope="module")
def stock() -> Iterator[LocalServices]:
    fake = FakeSGLang()
    fake.logprobs_after = RowsOfAModel()
    with fake.serving():
        flags = ["--engine", "sglang", "--engine-address", fake.url]
        with LocalServices(PairSettings(target_flags=flags)) as local:
            yield local


@pytest.fixture(scope="module")
def own() -> Iterator[LocalServices]:
    with LocalServices(PairSettings(dtype="float32")) as local:
        yield local


@pytest.mark.parametrize("settings", RULES, ids=["greedy", "sampled", "filtered"])
def test_off_fixed_and_on_give_the_text_of_our_own_engine(
    stock: LocalServices, own: LocalServices, settings: Settings
) -> None:
    with Client(own.orchestrator_address) as client:
        right = client.generate(PROMPT, settings).wait().token_ids
    assert len(right) > 5
    with Client(stock.orchestrator_address) as client:
        for draft_length in (0, 4, "adaptive"):
            told = client.generate(PROMPT, replace(settings, draft_length=draft_length)).wait()
            assert told.token_ids == right, draft_length
        assert client.server_info().target.device == "SGLang 0.5.13"
