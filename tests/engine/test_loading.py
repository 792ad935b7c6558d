"""Checkpoints that would serve another model than they say, or none: each is refused by name, in
one line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from slipstream import stages
from slipstream.engine.checkpoint import NO_TRUST, Trust, directory_of
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.pretrained.loading import load_pretrained
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.hosting.tokenizer_config import TEMPLATE_FILE
from slipstream.hosting.tokenizer_files import load_tokenizer_files, refuse_tokens_without_rows
from tests import tiny_models

UP_PROJ = "model.layers.1.mlp.up_proj.weight"
HEAD = "lm_head.weight"
TOKENIZER_SIZE = Tokenizer.from_file(str(tiny_models.EMBEDDED_TOKENIZER)).get_vocab_size()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_models.save(tiny_models.build("llama"), tmp_path / "model")


def refused(name: Path | str) -> str:
    with pytest.raises(UnsupportedModelError) as caught:
        TransformersModel.load(str(name), device="cpu", dtype="float32")
    return one_line(caught.value)


def tokenizer_refused(name: Path | str) -> str:
    with pytest.raises(UnsupportedModelError) as caught:
        load_tokenizer_files(str(name))
    return one_line(caught.value)


def one_line(error: Exception) -> str:
    assert "\n" not in str(error)
    return str(error)


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def change_config(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def shard(directory: Path) -> None:
    """The weights in two files with an index, as checkpoints of many gigabytes have them."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    where = {name: f"model-0000{1 + (name == names[-1])}-of-00002.safetensors" for name in names}
    for file in set(where.values()):
        part = {name: tensors[name] for name in names if where[name] == file}
        save_file(part, directory / file, metadata={"format": "pt"})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def test_a_tensor_that_is_not_there_is_named(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: [tensors.pop(UP_PROJ), tensors.pop(HEAD)])
    assert refused(checkpoint).startswith(f"{checkpoint} lacks 2 of LlamaForCausalLM's tensors: {HEAD}, {UP_PROJ}; ")


def test_an_expert_that_is_not_there_is_named(tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("mixtral"), tmp_path)
    change_tensors(directory, lambda tensors: tensors.pop("model.layers.0.block_sparse_moe.experts.1.w1.weight"))
    assert "model.layers.0.mlp.experts.gate_up_proj" in refused(directory)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_tied_weights_and_old_buffers_are_no_fault(family: str, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build(family, tie_word_embeddings=True), tmp_path)
    assert HEAD not in load_file(directory / "model.safetensors")
    # What checkpoints of older versions hold; nothing is said about it either.
    change_tensors(directory, lambda tensors: tensors.update({"model.rotary_emb.inv_freq": torch.ones(8)}))
    TransformersModel.load(str(directory), device="cpu", dtype="float32")


def test_tensors_of_other_shapes_than_the_config_says_are_named(checkpoint: Path) -> None:
    change_config(checkpoint, intermediate_size=96)
    message = refused(checkpoint)
    assert "model.layers.0.mlp.down_proj.weight is [64, 128] instead of [64, 96]" in message
    assert "and 3 more" in message


def test_tensors_that_the_config_has_no_place_for_are_told_and_served_without(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change_config(checkpoint, num_hidden_layers=1)
    TransformersModel.load(str(checkpoint), device="cpu", dtype="float32")
    (record,) = [record for record in caplog.records if record.name.startswith("slipstream")]
    assert "holds 9 tensors that its config.json has no place for" in record.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_no_numbers_are_named(checkpoint: Path, value: float, dtype: str) -> None:
    change_tensors(checkpoint, lambda tensors: tensors[UP_PROJ][3].fill_(value))
    with pytest.raises(UnsupportedModelError) as caught:
        TransformersModel.load(str(checkpoint), device="cpu", dtype=dtype)
    assert one_line(caught.value).startswith(f"{checkpoint} has weights that are NaN or infinite, in {UP_PROJ}; ")


def write(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda directory: (directory / name).write_bytes(content)


def cut(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


@pytest.mark.parametrize("damage", [cut, write("model.safetensors", b""), write("model.safetensors", b"hello" * 99)])
def test_a_damaged_weights_file_is_named(checkpoint: Path, damage: Callable[[Path], Any]) -> None:
    damage(checkpoint)
    message = refused(checkpoint)
    assert message.startswith(f"model.safetensors of {checkpoint} is truncated or not a safetensors file (")
    assert message.endswith("): copy or download it again")


def test_shards_are_served_and_one_that_is_not_there_is_named(checkpoint: Path) -> None:
    shard(checkpoint)
    TransformersModel.load(str(checkpoint), device="cpu", dtype="float32")
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    assert refused(checkpoint) == (
        f"{checkpoint} lacks 1 of the files that its model.safetensors.index.json names: "
        "model-00002-of-00002.safetensors; copy or download it again"
    )


def test_an_index_that_is_not_json_is_named(checkpoint: Path) -> None:
    shard(checkpoint)
    for content in (b"{nope", b"[]", b"{}"):
        (checkpoint / "model.safetensors.index.json").write_bytes(content)
        assert f"model.safetensors.index.json of {checkpoint}" in refused(checkpoint)


class Runs:
    """Write a file when it is unpickled, as any pickle may."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._path,)


def pickle_instead(directory: Path, **others: Any) -> None:
    """The weights as torch pickles them, and none as safetensors."""
    torch.save({**load_file(directory / "model.safetensors"), **others}, directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


def test_a_model_that_is_loaded_slowly_tells_how_far_it_is(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stages, "QUIET_SECONDS", 0.0)
    caplog.set_level("INFO")
    load_pretrained(str(checkpoint), device="cpu", dtype="float32", attention="sdpa")
    tensors = [message for message in caplog.messages if message.startswith(f"{stages.LOADING}: ")]
    assert re.fullmatch(rf"{stages.LOADING}: (\d+) of \1 tensors", tensors[-1])
    weights = [message for message in caplog.messages if message.startswith(f"{stages.CHECKING}: ")]
    assert re.fullmatch(rf"{stages.CHECKING}: (\d+\.\d) of \1 MB", weights[-1])
    assert stages.last_stage(caplog.messages) == weights[-1]


def test_pickled_weights_are_not_loaded(checkpoint: Path) -> None:
    pickle_instead(checkpoint)
    message = refused(checkpoint)
    assert message.startswith(f"{checkpoint} has its weights in pytorch_model.bin, but only safetensors are loaded")
    assert "save_pretrained" in message


def test_pickled_weights_that_are_trusted_are_the_same_model(checkpoint: Path) -> None:
    plain = TransformersModel.load(str(checkpoint), device="cpu", dtype="float32")
    pickle_instead(checkpoint)
    for trust in (NO_TRUST, Trust(code=True)):
        with pytest.raises(
            UnsupportedModelError, match=r"trust it with --allow-pickle, which takes pytorch_model\.bin$"
        ):
            load_pretrained(str(checkpoint), device="cpu", dtype="float32", attention="sdpa", trust=trust)
    pickled = TransformersModel.load(str(checkpoint), device="cpu", dtype="float32", trust=Trust(pickle=True))
    assert pickled.weights_fingerprint == plain.weights_fingerprint


def test_shards_that_are_pickled_are_served_when_trusted_and_one_that_is_not_there_is_named(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    pickle_instead(checkpoint)
    (checkpoint / "pytorch_model.bin").unlink()
    files = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    where = {name: files[index % 2] for index, name in enumerate(tensors)}
    for file in files:
        torch.save({name: tensors[name] for name in tensors if where[name] == file}, checkpoint / file)
    (checkpoint / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert "only safetensors are loaded" in refused(checkpoint)
    TransformersModel.load(str(checkpoint), device="cpu", dtype="float32", trust=Trust(pickle=True))
    (checkpoint / files[1]).unlink()
    with pytest.raises(UnsupportedModelError, match=f"that its pytorch_model.bin.index.json names: {files[1]}; "):
        TransformersModel.load(str(checkpoint), device="cpu", dtype="float32", trust=Trust(pickle=True))


def test_a_trusted_pickle_may_hold_tensors_and_run_nothing(checkpoint: Path, tmp_path: Path) -> None:
    pickle_instead(checkpoint, more=Runs(tmp_path / "ran"))
    with pytest.raises(UnsupportedModelError) as caught:
        TransformersModel.load(str(checkpoint), device="cpu", dtype="float32", trust=Trust(pickle=True))
    assert one_line(caught.value) == (
        f"pytorch_model.bin of {checkpoint} is damaged or holds more than tensors, which is never loaded: copy, download or "
        "export it again, as safetensors"
    )
    assert not (tmp_path / "ran").exists()
    torch.load(checkpoint / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "ran").exists(), "it would have"


def test_safetensors_are_loaded_also_where_a_pickle_would_be_trusted(checkpoint: Path) -> None:
    (checkpoint / "pytorch_model.bin").write_bytes(b"no pickle")
    TransformersModel.load(str(checkpoint), device="cpu", dtype="float32", trust=Trust(pickle=True))


def test_a_config_that_names_another_file_for_its_weights_is_refused(checkpoint: Path) -> None:
    torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / "adapter_model.bin")
    change_config(checkpoint, transformers_weights="adapter_model.bin")
    assert refused(checkpoint) == (
        f"config.json of {checkpoint} names its weights' file (transformers_weights), which is not supported: call it "
        "model.safetensors"
    )


def test_an_index_that_names_a_file_that_is_no_safetensors_by_its_name_is_refused(checkpoint: Path) -> None:
    shard(checkpoint)
    index = checkpoint / "model.safetensors.index.json"
    (checkpoint / "model-00002-of-00002.safetensors").rename(checkpoint / "model-2.bin")
    index.write_text(index.read_text().replace("model-00002-of-00002.safetensors", "model-2.bin"))
    assert refused(checkpoint).startswith(
        f"model.safetensors.index.json of {checkpoint} names model-2.bin, but only safetensors are loaded"
    )


def test_a_directory_without_weights_says_what_is_needed(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    assert refused(checkpoint).startswith(f"{checkpoint} has no weights: it needs model.safetensors")


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "fp8", "no-such-method"])
def test_quantised_weights_are_refused(checkpoint: Path, method: str) -> None:
    change_config(checkpoint, quantization_config={"quant_method": method, "bits": 4})
    assert refused(checkpoint) == (
        f"{checkpoint} is quantised ({method}), which no target is served with: give the checkpoint it was made from, whose "
        "weights are bfloat16, float16 or float32, or make one of it: slipstream dequantise MODEL --out DIR"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{nope", "config.json of {} is not JSON: Expecting property name enclosed in double quotes: line 1 column 2"),
        (b"\xff\xfe\x00", "config.json of {} is not JSON: "),
        (b"[1]", "config.json of {} is not a model's: it names no model_type"),
        (b"{}", "config.json of {} is not a model's: it names no model_type"),
        (b'{"model_type": 3}', "config.json of {} is not a model's: it names no model_type"),
    ],
)
def test_a_config_that_is_none_is_told(checkpoint: Path, content: bytes, message: str) -> None:
    (checkpoint / "config.json").write_bytes(content)
    assert refused(checkpoint).startswith(message.format(checkpoint))
    assert tokenizer_refused(checkpoint).startswith(message.format(checkpoint))


def test_a_generation_config_that_is_not_json_is_told(checkpoint: Path) -> None:
    # Without it the model would end its texts, and choose its tokens, otherwise than it was meant
    # to.
    (checkpoint / "generation_config.json").write_text("{nope")
    assert refused(checkpoint).startswith(f"generation_config.json of {checkpoint} is not JSON: ")


def test_an_unknown_architecture_is_named(checkpoint: Path) -> None:
    change_config(checkpoint, model_type="nosuch", architectures=["NoSuchForCausalLM"])
    message = refused(checkpoint)
    assert message.startswith(f"{checkpoint} is of model type 'nosuch', which transformers ")
    assert " does not know" in message


def test_a_model_that_needs_code_of_its_own_is_refused_without_asking(checkpoint: Path) -> None:
    change_config(
        checkpoint, model_type="nosuch", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.M"}
    )
    (checkpoint / "own.py").write_text("raise SystemExit('ran')")
    assert "code of its own (auto_map), which is not run without --trust-remote-code" in refused(checkpoint)


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

class Config(LlamaConfig):
    model_type = "own"

class M(LlamaForCausalLM):
    config_class = Config

class T(PreTrainedTokenizerFast):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.chat_template = "of its own"
"""


def test_a_model_with_code_of_its_own_is_served_when_that_is_trusted(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.M"}
    change_config(checkpoint, model_type="own", auto_map=own, architectures=["M"])
    (checkpoint / "own.py").write_text(OWN_CODE)
    trust = Trust(code=True)
    model = TransformersModel.load(str(checkpoint), device="cpu", dtype="float32", trust=trust)
    assert model.architecture == "M"
    assert load_tokenizer_files(str(checkpoint), trust).files[TEMPLATE_FILE] != b"of its own"
    named = {"tokenizer_class": "T", "auto_map": {"AutoTokenizer": [None, "own.T"]}}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(named))
    assert load_tokenizer_files(str(checkpoint), trust).files[TEMPLATE_FILE] == b"of its own"
    for untrusted in (NO_TRUST, Trust(pickle=True)):
        with pytest.raises(UnsupportedModelError, match="--trust-remote-code"):
            load_pretrained(str(checkpoint), device="cpu", dtype="float32", attention="sdpa", trust=untrusted)
    change_config(checkpoint, auto_map={"AutoConfig": "own.Config"})
    with pytest.raises(UnsupportedModelError, match="which does not generate text"):
        load_pretrained(str(checkpoint), device="cpu", dtype="float32", attention="sdpa", trust=trust)


def test_code_that_is_not_needed_is_no_fault(checkpoint: Path) -> None:
    change_config(checkpoint, auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.M"})
    (checkpoint / "own.py").write_text("raise SystemExit('ran')")
    TransformersModel.load(str(checkpoint), device="cpu", dtype="float32")
    load_tokenizer_files(str(checkpoint))


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("bert", "BertForMaskedLM"),
        ("bert", "BertModel"),
        ("clip", "CLIPModel"),
        ("llama", "LlamaForTokenClassification"),
    ],
)
def test_what_generates_no_text_is_named(checkpoint: Path, model_type: str, architecture: str) -> None:
    (checkpoint / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [architecture]}))
    assert refused(checkpoint) == (
        f"{checkpoint} is a {architecture}, which does not generate text; only decoder-only language models can be served"
    )


@pytest.mark.parametrize("changes", [{"hidden_size": "sixty"}, {"num_attention_heads": 5}, {"rms_norm_eps": []}])
def test_a_config_that_transformers_refuses_is_told_in_one_line(checkpoint: Path, changes: dict[str, Any]) -> None:
    change_config(checkpoint, **changes)
    assert str(checkpoint) in refused(checkpoint)


@pytest.mark.parametrize(
    "name", ["/no/such/model", "./models/target", "~/no-such-model", "a/b/c", "models/target/", "-/x"]
)
def test_a_path_that_is_not_there_is_told_as_one(name: str) -> None:
    for message in (refused(name), tokenizer_refused(name)):
        assert (
            message
            == f"no model directory at {name}: --model takes a directory, a hub id such as org/name, or 'embedded'"
        )


@pytest.mark.parametrize("name", ["no-such-models/target", "no-such-model"])
def test_a_name_that_could_be_the_hubs_is_first_of_all_no_directory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for message in (refused(name), tokenizer_refused(name)):
        assert message.startswith(f"no model directory at {name}, and no such model in the hub's cache here")


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the hub's cache has org/name, without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit = "0" * 40
    references = tmp_path / "models--org--name" / "refs"
    references.mkdir(parents=True)
    (references / "main").write_text(commit)
    return tiny_models.save(tiny_models.build("llama"), references.parent / "snapshots" / commit)


def test_a_hub_model_is_served_and_checked_as_a_directory_is(cached: Path) -> None:
    model = TransformersModel.load("org/name", device="cpu", dtype="float32")
    refuse_tokens_without_rows(load_tokenizer_files("org/name"), model.vocabulary_size, "org/name")
    change_tensors(cached, lambda tensors: tensors.pop(UP_PROJ))
    assert refused("org/name").startswith("org/name lacks 1 of LlamaForCausalLM's tensors")
    (cached / "model.safetensors").unlink()
    assert refused("org/name").startswith("org/name has no weights")
    (cached / "tokenizer.json").unlink()
    assert tokenizer_refused("org/name").startswith("org/name has no tokenizer")


@pytest.mark.parametrize(
    ("trust", "weights", "fetched"),
    [
        (NO_TRUST, True, {"config.json", "model-1.safetensors"}),
        (NO_TRUST, False, {"config.json"}),
        (Trust(pickle=True), True, {"config.json", "model-1.safetensors", "pytorch_model-1.bin"}),
        (Trust(pickle=True), False, {"config.json"}),
        (Trust(code=True), True, {"config.json", "model-1.safetensors", "own.py"}),
        (Trust(code=True), False, {"config.json", "own.py"}),
    ],
)
def test_nothing_is_fetched_from_the_hub_that_is_not_to_be_used(
    trust: Trust, weights: bool, fetched: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"config.json", "model-1.safetensors", "pytorch_model-1.bin", "own.py", "training_args.bin"}
    seen: list[str] = []

    def snapshot_download(name: str, *, allow_patterns: list[str], **_: object) -> str:
        seen.extend(file for file in there if any(fnmatch(file, pattern) for pattern in allow_patterns))
        return "/there"

    monkeypatch.setattr("slipstream.hub.download.snapshot_download", snapshot_download)
    assert directory_of("org/name", weights=weights, trust=trust) == Path("/there")
    assert set(seen) == fetched


def test_a_file_is_no_model_directory(checkpoint: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        assert refused(checkpoint / name).startswith(f"{checkpoint / name} is a file; a model is a directory with ")


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "gemma2"]
)  # of the last two transformers makes an empty tokenizer
def test_a_tokenizer_that_is_not_there_is_told(family: str, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build(family), tmp_path)
    (directory / "tokenizer.json").unlink()
    assert tokenizer_refused(directory).startswith(f"{directory} has no tokenizer: it needs tokenizer.json")


def test_a_damaged_tokenizer_is_named(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text("{nope")
    assert tokenizer_refused(checkpoint).startswith(f"the tokenizer of {checkpoint} cannot be loaded: ")


def add_token(directory: Path, token: str, special: bool) -> None:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(token, special=special)])
    tokenizer.save(str(directory / "tokenizer.json"))


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_is_refused_with_both_numbers(checkpoint: Path) -> None:
    tokenizer = load_tokenizer_files(str(checkpoint))
    refuse_tokens_without_rows(tokenizer, TOKENIZER_SIZE, "org/name")
    with pytest.raises(UnsupportedModelError) as caught:
        refuse_tokens_without_rows(tokenizer, 300, "org/name")
    sentence = f"the tokenizer of org/name knows {TOKENIZER_SIZE} tokens, but its embedding and logits have 300 rows: "
    assert one_line(caught.value).startswith(sentence)
    add_token(checkpoint, "<more>", special=False)
    with pytest.raises(UnsupportedModelError):
        refuse_tokens_without_rows(load_tokenizer_files(str(checkpoint)), TOKENIZER_SIZE, "org/name")


def test_a_placeholder_that_no_chat_writes_needs_no_row(checkpoint: Path) -> None:
    # Gemma 3's text models have one for images, which is one token more than they have rows.
    add_token(checkpoint, "<image>", special=True)
    refuse_tokens_without_rows(load_tokenizer_files(str(checkpoint)), TOKENIZER_SIZE, "org/name")
    with (checkpoint / "chat_template.jinja").open("a") as template:
        template.write("<image>")
    with pytest.raises(UnsupportedModelError):
        refuse_tokens_without_rows(load_tokenizer_files(str(checkpoint)), TOKENIZER_SIZE, "org/name")


def test_a_whole_checkpoint_is_served(tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(tiny_models.EMBEDDED_TOKENIZER.parent, directory)
    shard(directory)
    model = TransformersModel.load(str(directory), device="cpu", dtype="bfloat16")
    refuse_tokens_without_rows(load_tokenizer_files(str(directory)), model.vocabulary_size, "org/name")
