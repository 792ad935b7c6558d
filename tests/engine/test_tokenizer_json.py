"""tokenizer.json is read as it is; the class that tokenizer_config.json names has no say."""

from __future__ import annotations

import inspect
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from orchestrator.sessions.conversation.codec import Codec
from slipstream.engine.errors import UnsupportedModelError
from slipstream.hosting.tokenizer_config import chat_templates, named_special_tokens, needs_transformers
from slipstream.hosting.tokenizer_defaults import CLASS_DEFAULTS
from slipstream.hosting.tokenizer_files import TokenizerFiles, load_tokenizer_files
from slipstream.hosting.tokenizer_json import NAMED
from tests.tokenizer_models import CASES, CORPUS, TokenizerCase

CLASSES = ("GPT2Tokenizer", "LlamaTokenizer", "Qwen2Tokenizer", "GemmaTokenizer", "CodeLlamaTokenizer", "T5Tokenizer")
TEXT = "In 2023 they'll\n    return  12345 items, 你好 Größe.\n\n"


def case_of(name: str) -> TokenizerCase:
    return next(case for case in CASES if case.name == name)


def written(directory: Path, name: str, **config: Any) -> TokenizerFiles:
    return load_tokenizer_files(str(case_of(name).write(directory, **config)))


def refused(directory: Path, name: str, **config: Any) -> str:
    with pytest.raises(UnsupportedModelError) as caught:
        written(directory, name, **config)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize("class_name", CLASSES)
def test_the_ids_are_those_of_the_file_under_any_class_name(class_name: str, tmp_path: Path) -> None:
    for case in CASES:
        directory = case.write(tmp_path / case.name, tokenizer_class=class_name)
        if class_name == "T5Tokenizer" and "unigram" not in case.name:  # which the class cannot take
            with pytest.raises(UnsupportedModelError, match=r"^the tokenizer of .* cannot be loaded: .*"):
                load_tokenizer_files(str(directory))
            continue
        codec = Codec.from_files(load_tokenizer_files(str(directory)).files)
        own = Tokenizer.from_file(str(directory / "tokenizer.json"))
        for text in (TEXT, *CORPUS):
            assert codec.encode_rendered(text) == own.encode(text, add_special_tokens=False).ids, case.name


class Counted:
    """A tokenizer that counts the calls that add tokens to it."""

    calls = 0

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def from_file(cls, path: str) -> Counted:
        return cls(Tokenizer.from_file(path))

    def add_tokens(self, tokens: list[Any]) -> int:
        Counted.calls += 1
        return self._tokenizer.add_tokens(tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_thousands_of_listed_tokens_are_added_by_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call takes as long as there are added tokens: Gemma 3's 6,415 took a minute."""
    directory = case_of("gpt2").write(tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    first = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab_size()
    listed = {str(first + number): {"content": f"<unused{number}>", "special": False} for number in range(2000)}
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, "added_tokens_decoder": listed}))
    monkeypatch.setattr("slipstream.hosting.tokenizer_json.Tokenizer", Counted)
    codec = Codec.from_files(load_tokenizer_files(str(directory)).files)
    assert codec.encode_rendered("<unused0>a<unused1999>")[::2] == [first, first + 1999]
    assert Counted.calls == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_transformers_names_and_template_are_the_same(case: TokenizerCase, tmp_path: Path) -> None:
    directory = case.write(tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    theirs = AutoTokenizer.from_pretrained(directory)
    assert not needs_transformers(directory)
    assert named_special_tokens(directory) == theirs.special_tokens_map
    assert chat_templates(directory) == theirs.chat_template


DECLARED: dict[str, dict[str, Any] | None] = {
    "LlamaTokenizer": {"tokenizer_class": "LlamaTokenizer", "chat_template": "{{ bos_token }}x"},
    "LlamaTokenizerFast": {"tokenizer_class": "LlamaTokenizerFast"},
    "PreTrainedTokenizerFast": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "Qwen2Tokenizer": {"tokenizer_class": "Qwen2Tokenizer"},
    "Qwen2TokenizerFast": {"tokenizer_class": "Qwen2TokenizerFast"},
    "GPT2Tokenizer": {"tokenizer_class": "GPT2Tokenizer"},
    "GPTNeoXTokenizerFast": {"tokenizer_class": "GPTNeoXTokenizerFast"},
    "a class that is not known": {"tokenizer_class": "SomeTokenizer"},
    "no class": {},
    "code of its own": {"tokenizer_class": "LlamaTokenizer", "auto_map": {"AutoTokenizer": ["a.B", None]}},
    "some names": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<|im_end|>", "pad_token": "</s>"},
    "names of nothing": {"tokenizer_class": "LlamaTokenizer", "bos_token": None, "eos_token": None},
    "Qwen's names": {
        "tokenizer_class": "Qwen2Tokenizer",
        "bos_token": None,
        "unk_token": None,
        "added_tokens_decoder": {},
    },
    "no tokenizer_config.json": None,
}


@pytest.mark.parametrize("said", DECLARED)
@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", None])
@pytest.mark.parametrize("name", ["llama2-legacy", "gpt2"])
def test_without_transformers_a_class_names_the_same_tokens_by_default(
    name: str, model_type: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, config = case_of(name).write(tmp_path), DECLARED[said]
    declare(directory, model_type, config)
    by_transformers = special_tokens(load(directory, model_type))
    monkeypatch.setattr("slipstream.hosting.tokenizer_config.find_spec", lambda name: None)
    monkeypatch.setattr("slipstream.extras.find_spec", lambda name: None)
    assert special_tokens(load(directory, model_type)) == by_transformers


def declare(directory: Path, model_type: str | None, config: dict[str, Any] | None, **more: Any) -> None:
    """Rewrite the files beside tokenizer.json; those of a GGUF file have no config.json."""
    (directory / "config.json").unlink()
    if model_type is not None:
        (directory / "config.json").write_text(json.dumps({"model_type": model_type, **more}))
    (directory / "tokenizer_config.json").unlink()
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))


def load(directory: Path, model_type: str | None) -> TokenizerFiles:
    return load_tokenizer_files(str(directory if model_type else directory / "model.gguf"))


def special_tokens(files: TokenizerFiles) -> Any:
    return json.loads(files.files["tokenizer_config.json"])


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_without_transformers_a_class_in_config_json_names_the_same_tokens(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = case_of("llama2-legacy").write(tmp_path)
    declare(directory, model_type, None, tokenizer_class="LlamaTokenizer")
    (directory / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<s>"}, "pad_token": None}))
    by_transformers = special_tokens(load(directory, model_type))
    assert by_transformers == {"bos_token": "<s>", "eos_token": "<s>", "unk_token": "<unk>"}
    monkeypatch.setattr("slipstream.hosting.tokenizer_config.find_spec", lambda name: None)
    assert special_tokens(load(directory, model_type)) == by_transformers


@pytest.mark.parametrize("class_name", CLASS_DEFAULTS)
def test_the_tokens_that_a_class_names_by_default_are_those_of_transformers(class_name: str) -> None:
    parameters = inspect.signature(getattr(transformers, class_name).__init__).parameters
    named = {name: parameters[name].default for name in NAMED if name in parameters}
    assert CLASS_DEFAULTS[class_name] == {name: token for name, token in named.items() if token is not None}


def test_without_transformers_a_class_that_is_not_known_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("slipstream.hosting.tokenizer_config.find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING, "slipstream.hosting"):
        written(tmp_path, "llama3", tokenizer_class="GemmaTokenizer")
    [said] = [record.getMessage() for record in caplog.records]
    assert "tokenizer_class 'GemmaTokenizer' is not known here without transformers" in said


@pytest.mark.parametrize("several", [False, True])
def test_without_transformers_templates_of_all_kinds_are_found(several: bool, tmp_path: Path) -> None:
    directory = CASES[0].write(tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    if several:
        (directory / "additional_chat_templates").mkdir()
        (directory / "additional_chat_templates" / "rag.jinja").write_text("{{ rag }}")
        listed = [{"name": "default", "template": "first"}, {"name": "tools", "template": "second"}]
        path = directory / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": listed}))
        assert chat_templates(directory) == AutoTokenizer.from_pretrained(directory).chat_template
    (directory / "chat_template.jinja").write_text("{{ default }}")
    assert chat_templates(directory) == AutoTokenizer.from_pretrained(directory).chat_template


def test_where_transformers_class_splits_otherwise_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "slipstream.hosting"):
        written(tmp_path, "smollm-digits", tokenizer_class="GPT2Tokenizer")
    [said] = [record.getMessage() for record in caplog.records]
    assert "tokenizer.json is followed as it is; transformers' GPT2Tokenizer takes another pre_tokenizer" in said


def test_a_file_that_all_agree_with_is_read_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        written(tmp_path, "llama3")
    assert not caplog.records


FLAGS = {"lstrip": False, "rstrip": True, "normalized": False, "single_word": False, "special": True}


def id_of(directory: Path, token: str) -> int:
    index = Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id(token)
    assert index is not None
    return index


def test_flags_of_added_tokens_in_the_config_are_followed(tmp_path: Path) -> None:
    index = id_of(case_of("gpt2").write(tmp_path), "<|im_end|>")
    codec = Codec.from_files(written(tmp_path, "gpt2").files)
    assert len(codec.encode_rendered("<|im_end|>\n\n")) > 1
    decoder = {str(index): {"content": "<|im_end|>", **FLAGS}}
    codec = Codec.from_files(written(tmp_path, "gpt2", added_tokens_decoder=decoder).files)
    assert codec.encode_rendered("<|im_end|>\n\n") == [index]


def test_a_token_that_only_the_config_knows_is_added_under_its_id(tmp_path: Path) -> None:
    count = Tokenizer.from_file(str(case_of("gpt2").write(tmp_path) / "tokenizer.json")).get_vocab_size()
    files = written(tmp_path, "gpt2", added_tokens_decoder={str(count): {"content": "<tool>", **FLAGS}})
    assert Codec.from_files(files.files).encode_rendered("<tool>") == [count]
    line = refused(tmp_path, "gpt2", added_tokens_decoder={"999": {"content": "<tool>", **FLAGS}})
    assert "'<tool>' as token 999" in line and f"token {count}" in line
    line = refused(tmp_path, "gpt2", added_tokens_decoder={"7": {"content": "<|im_end|>", **FLAGS}})
    assert "make tokenizer_config.json and tokenizer.json agree" in line


def test_a_named_special_token_that_the_file_lacks_is_one_token(tmp_path: Path) -> None:
    codec = Codec.from_files(written(tmp_path, "gpt2", pad_token="<pad>", extra_special_tokens=["<tool>"]).files)
    assert [len(codec.encode_rendered(text)) for text in ("<pad>", "<tool>")] == [1, 1]


def test_legacy_files_of_added_tokens_are_followed(tmp_path: Path) -> None:
    count = Tokenizer.from_file(str(case_of("gpt2").write(tmp_path) / "tokenizer.json")).get_vocab_size()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<tool>": count}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "<pad>", "lstrip": True}}))
    codec = Codec.from_files(load_tokenizer_files(str(tmp_path)).files)
    assert codec.encode_rendered("<tool>") == [count]
    assert codec.encode_rendered("  <pad>") == [count + 1]


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        (
            "llama2-legacy",
            {"add_bos_token": False},
            "add_bos_token is False in tokenizer_config.json, but tokenizer.json adds such a token to raw prompts: "
            "tokenizer.json is followed",
        ),
        (
            "gpt2",
            {"add_bos_token": True},
            "add_bos_token is True in tokenizer_config.json, but tokenizer.json adds no such token to raw prompts: "
            "tokenizer.json is followed",
        ),
        ("gpt2", {"add_eos_token": True}, "add_eos_token is True"),
        (
            "gpt2",
            {"add_prefix_space": True},
            "add_prefix_space is True in tokenizer_config.json, but False in tokenizer.json: tokenizer.json is followed",
        ),
        ("llama2-first", {"add_prefix_space": False}, "add_prefix_space is False"),
        (
            "t5-unigram",
            {"clean_up_tokenization_spaces": True},
            "clean_up_tokenization_spaces of tokenizer_config.json is not",
        ),
    ],
)
def test_a_key_that_is_not_followed_is_named(
    name: str, config: dict[str, Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "slipstream.hosting"):
        written(tmp_path, name, **config)
    assert any(said in record.getMessage() for record in caplog.records), caplog.text


def test_a_key_that_would_split_special_tokens_is_refused(tmp_path: Path) -> None:
    assert "sets split_special_tokens" in refused(tmp_path, "gpt2", split_special_tokens=True)


def test_a_tokenizer_with_dropout_is_refused(tmp_path: Path) -> None:
    change(case_of("gpt2").write(tmp_path), lambda said: said["model"].update(dropout=0.1))
    with pytest.raises(UnsupportedModelError, match=r"dropout of 0.1.*remove it from tokenizer.json"):
        load_tokenizer_files(str(tmp_path))


def change(directory: Path, how: Any) -> None:
    path = directory / "tokenizer.json"
    said = json.loads(path.read_text())
    how(said)
    path.write_text(json.dumps(said))


CHANGES = {
    "pre_tokenizer": lambda said: said["pre_tokenizer"]["pretokenizers"].pop(0),
    "normalizer": lambda said: said.update(normalizer={"type": "NFC"}),
    "decoder": lambda said: said.update(decoder={"type": "Fuse"}),
    "ignore_merges": lambda said: said["model"].update(ignore_merges=True),
    "merges": lambda said: said["model"]["merges"].pop(),
    "rstrip": lambda said: said["added_tokens"][-1].update(rstrip=True),
    "special": lambda said: said["added_tokens"][-1].update(special=False),
}


@pytest.mark.parametrize("part", CHANGES)
def test_the_fingerprint_covers_all_that_gives_ids(part: str, tmp_path: Path) -> None:
    own = written(tmp_path, "smollm-digits").fingerprint
    change(tmp_path, CHANGES[part])
    assert load_tokenizer_files(str(tmp_path)).fingerprint != own


def test_the_fingerprint_does_not_cover_what_stands_around_a_raw_prompt(tmp_path: Path) -> None:
    own = written(tmp_path, "gpt2").fingerprint
    change(tmp_path, lambda said: said.update(post_processor=None, padding=None, version="1.0"))
    assert load_tokenizer_files(str(tmp_path)).fingerprint == own
