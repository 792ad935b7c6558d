"""Heads on the target's hidden states: the same text in fewer steps, by a verifier that was started
with ``--heads``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from slipstream.engine.heads.eagle3_config import TargetShape, read_eagle3_config
from tests import tiny_models
from tests.eagle3_heads import config_values, random_weights, write

COUNT, HEADS = 80, 3
PROPOSERS = (None, "draft", "ngram", "heads")
GREEDY = Settings(temperature=0.0, max_token_count=COUNT, ignore_end_tokens=True, top_logprob_count=1)
SAMPLED = replace(GREEDY, temperature=0.7, seed=5)
CONFIG = {
    "speculators_model_type": "medusa",
    "num_heads": HEADS,
    "num_hidden_layers": 1,
    "medusa_hidden_size": 64,
    "medusa_vocab_size": tiny_models.VOCABULARY_SIZE,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that mostly says its last token again: its output matrix is its embedding."""
    model = tiny_models.build("llama", head_dim=32, tie_word_embeddings=True)
    return tiny_models.save(model, tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads that guess the last token again: their blocks change nothing."""
    return save(tmp_path_factory.mktemp("heads"))


def save(directory: Path, **changes: object) -> Path:
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))
    blocks = {f"blocks.{head}.layers.0.weight": torch.zeros(64, 64) for head in range(HEADS)}
    save_file(blocks, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EAGLE-3 head that guesses the last token again: its feature is the target's embedding,
    which its layer does not change. It has no embedding of its own, and knows all tokens."""
    layer = {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    values = config_values(
        layer=layer | {"head_dim": 32, "vocab_size": tiny_models.VOCABULARY_SIZE},
        draft_vocab_size=tiny_models.VOCABULARY_SIZE,
        norm_before_residual=False,
        eagle_aux_hidden_state_layer_ids=[0, 1],
    )
    shape = TargetShape(2, 64, tiny_models.VOCABULARY_SIZE)
    weights = random_weights(read_eagle3_config(values, shape))
    output = tiny_models.build("llama", head_dim=32, tie_word_embeddings=True).lm_head.weight.detach().float().numpy()
    still = ("layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight")
    weights |= {name: np.zeros_like(weights[name]) for name in still} | {"norm.weight": np.ones(64, np.float32)}
    weights |= {"fc.weight": np.eye(64, 128, dtype=np.float32), "lm_head.weight": output}
    kept = {name: weight for name, weight in weights.items() if name not in ("embed_tokens.weight", "d2t")}
    return write(tmp_path_factory.mktemp("eagle3"), values, kept)


@pytest.fixture(scope="module", params=["heads", "eagle3"])
def client(request: pytest.FixtureRequest, target: Path) -> Iterator[Client]:
    heads: Path = request.getfixturevalue(request.param)
    pair = PairSettings(target=str(target), draft="", target_flags=["--heads", str(heads), "--kv-memory-mib", "8"])
    with LocalServices(pair) as local, Client(local.orchestrator_address) as connected:
        yield connected


def answer(client: Client, settings: Settings) -> Result:
    return client.answer([("user", "Say it again.")], settings).wait()


@pytest.mark.essential
@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_heads_save_steps_and_change_no_text(client: Client, settings: Settings) -> None:
    plain = answer(client, replace(settings, draft_length=0))
    assert plain.generated_token_count == COUNT and not plain.heads_token_count
    said = answer(client, replace(settings, draft_length=HEADS, proposer="heads"))
    assert (said.token_ids, said.logprobs) == (plain.token_ids, plain.logprobs)
    assert 0 < said.heads_accepted_token_count <= said.heads_token_count == said.draft_token_count
    assert said.round_count < COUNT


def test_the_verifier_chooses_whether_heads_pay(client: Client) -> None:
    plain = answer(client, replace(GREEDY, draft_length=0))
    for proposer in (None, "heads", "ngram"):
        said = answer(client, replace(GREEDY, draft_length="adaptive", proposer=proposer))
        assert (said.token_ids, said.logprobs) == (plain.token_ids, plain.logprobs)
        assert proposer != "ngram" or not said.heads_token_count


def test_the_server_tells_which_heads_its_verifier_has(client: Client, request: pytest.FixtureRequest) -> None:
    kind = {"heads": "medusa", "eagle3": "eagle3"}[request.node.callspec.params["client"]]
    assert client.server_info().target.heads == kind


def test_an_answer_names_the_proposer_that_it_asked_for_in_vain(client: Client) -> None:
    asked = replace(GREEDY, draft_length="adaptive")
    absent = {proposer: answer(client, replace(asked, proposer=proposer)).absent_proposer for proposer in PROPOSERS}
    assert absent == {None: "", "draft": "draft", "ngram": "", "heads": ""}
    assert answer(client, replace(asked, draft_length=2)).absent_proposer == "draft", "a fixed length asks the draft"
    assert not answer(client, replace(asked, draft_length=0, proposer="draft")).absent_proposer
    with (
        LocalServices(PairSettings(target="arithmetic:", draft="")) as local,
        Client(local.orchestrator_address) as bare,
    ):
        assert bare.server_info().target.heads == ""
        for proposer, expected in (("heads", "heads"), ("draft", "draft"), ("ngram", ""), (None, "")):
            said = bare.generate([10, 20, 30], Settings(max_token_count=8, proposer=proposer)).wait()
            assert (said.absent_proposer, said.draft_count) == (expected, 0) or not expected
        predicted = bare.generate([10, 20, 30], Settings(max_token_count=8, draft_length=2), prediction=[1, 2]).wait()
        assert not predicted.absent_proposer


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--heads", "/no/such/heads"], "--heads /no/such/heads is no folder"),
        (["--heads", "{heads}", "--model", "arithmetic:"], "its engine does not give"),
        (["--heads", "{wide}"], "medusa_hidden_size is 128, and must be the target's 64"),
    ],
)
def test_heads_that_cannot_be_served_are_refused_by_name(
    flags: list[str], why: str, target: Path, heads: Path, tmp_path: Path
) -> None:
    wide = save(tmp_path, medusa_hidden_size=128)
    given = [flag.format(heads=heads, wide=wide) for flag in flags]
    model = [] if "--model" in given else ["--model", str(target)]
    command = [sys.executable, "-P", "-m", "verifier_service", *model, *given, "--address", "127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1 and why in ended.stderr.splitlines()[-1]
