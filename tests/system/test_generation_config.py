"""What a generation_config.json says reaches turns that say nothing; what is wrong in it is told at
start and ends no turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from tests import tiny_models

PROMPT = [5, 900, 31, 7, 2000]
MOST = 7


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that bans two tokens it would choose, and whose end tokens are none of its
    vocabulary."""
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path_factory.mktemp("pair") / "target")
    said = {"eos_token_id": [-1, tiny_models.VOCABULARY_SIZE], "max_new_tokens": MOST, "num_beams": 1}
    free = generated(directory, {})
    said |= {"suppress_tokens": [free[0]], "bad_words_ids": [[free[2]]], "top_p": 0, "no_repeat_ngram_size": 0}
    (directory / "generation_config.json").write_text(json.dumps(said))
    return directory


@pytest.fixture(scope="module")
def client(target: Path) -> Iterator[Client]:
    draft = tiny_models.save(tiny_models.perturbed(tiny_models.build("llama"), 0.1), target.parent / "draft")
    with (
        LocalServices(PairSettings(target=str(target), draft=str(draft), dtype="float32")) as local,
        Client(local.orchestrator_address) as client,
    ):
        yield client


def generated(directory: Path, settings: dict[str, object]) -> list[int]:
    """transformers' greedy tokens, with what the directory says but for its end tokens, which are
    none."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.tensor([PROMPT])
    how = {"max_new_tokens": MOST, "eos_token_id": None, **settings}
    tokens: list[int] = model.generate(ids, attention_mask=torch.ones_like(ids), **how)[0, len(PROMPT) :].tolist()
    return tokens


@pytest.mark.parametrize("draft_length", [0, 5])
def test_a_turn_that_says_nothing_is_what_transformers_generates(
    client: Client, target: Path, draft_length: int
) -> None:
    expected = generated(target, {})
    assert client.generate(PROMPT, Settings(draft_length=draft_length)).wait().token_ids == expected
    assert generated(target, {"suppress_tokens": None, "bad_words_ids": None}) != expected


def test_a_turns_own_settings_win(client: Client, target: Path) -> None:
    free = generated(target, {"suppress_tokens": None, "bad_words_ids": None, "max_new_tokens": MOST + 2})
    said = Settings(banned_token_ids=(1,), max_token_count=MOST + 2)
    assert client.generate(PROMPT, said).wait().token_ids == free
