"""The tokenizer in a GGUF file gives llama.cpp's ids, and its end tokens are llama.cpp's, or it is
refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import pytest

from orchestrator.sessions.conversation.codec import Codec
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.gguf_metadata import read_metadata
from slipstream.engine.gguf_vocabulary import GgufVocabulary
from slipstream.hosting.gguf_splits import SPLITS
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from tests.gguf_vocabularies import TEXTS, ByLlamaCpp, byte_level, write, write_byte_level, write_sentencepiece

pytest.importorskip("xllamacpp")

REFUSED = (
    "kimi-k2",
    "afmoe",
    "gemma4",
    "sarvam-moe",
    "whitespace",
    "roberta-bpe",
    "jina-v2-code",
    "jina-v1-en",
    "new-one",
)


@contextmanager
def by_llama_cpp(path: Path) -> Iterator[ByLlamaCpp]:
    loaded = ByLlamaCpp(path)
    try:
        yield loaded
    finally:
        loaded.close()


def assert_same_ids(path: Path) -> Codec:
    codec = Codec.from_files(load_tokenizer_files(str(path)).files)
    with by_llama_cpp(path) as theirs:
        for text in TEXTS:
            assert codec.encode_rendered(text) == theirs.tokenize(text, add_special=False), text
        assert codec.encode_text("Hello there") == theirs.tokenize("Hello there", add_special=True)
    return codec


@pytest.mark.parametrize("split", sorted(SPLITS))
def test_each_split_of_byte_level_files_gives_the_ids_of_llama_cpp(split: str, tmp_path: Path) -> None:
    assert_same_ids(write_byte_level(tmp_path / "x.gguf", split))


def test_a_file_without_a_split_is_split_as_llama_cpps_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert_same_ids(write_byte_level(tmp_path / "x.gguf", None))
    assert "does not say how it splits text (tokenizer.ggml.pre)" in caplog.text


@pytest.mark.parametrize("split", REFUSED)
def test_a_split_that_is_not_known_is_refused_in_one_line(split: str, tmp_path: Path) -> None:
    path = write_byte_level(tmp_path / "x.gguf", split)
    with pytest.raises(UnsupportedModelError) as caught:
        load_tokenizer_files(str(path))
    assert str(caught.value) == (
        f"{path} splits text as {split!r} (tokenizer.ggml.pre), which is unknown here: "
        "put the model's tokenizer.json beside it"
    )


@pytest.mark.parametrize("kind", ["t5", "bert", "rwkv", "plamo2", "gemma4"])
def test_a_kind_of_tokenizer_that_is_not_known_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", kind, ["a"], [1])
    with pytest.raises(
        UnsupportedModelError, match=f"has a tokenizer of kind '{kind}', which cannot be read from a GGUF"
    ):
        load_tokenizer_files(str(path))


@pytest.mark.parametrize(
    "keys", [{}, {"add_space_prefix": False}, {"add_bos_token": False}, {"add_eos_token": True}], ids=str
)
def test_sentencepiece_files_give_the_ids_of_llama_cpp(keys: dict[str, Any], tmp_path: Path) -> None:
    codec = assert_same_ids(write_sentencepiece(tmp_path / "x.gguf", "<|im_start|>", "<|im_end|>", **keys))
    spaced = keys.get("add_space_prefix", True)
    assert codec.decode(codec.encode_rendered("Hello there")) == "Hello there"
    first = codec.tokenizer.id_to_token(codec.encode_rendered("Hello")[0])
    assert first is not None and first.startswith("▁") is spaced


def test_phi_3_files_have_special_tokens_that_take_the_spaces_after_them(tmp_path: Path) -> None:
    names = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|end|>")
    path = write_sentencepiece(tmp_path / "x.gguf", *names, name="Phi-3 mini")
    codec = assert_same_ids(path)
    assert len(codec.encode_rendered("<|end|>\n\n")) == 1


def test_full_width_special_tokens_are_one_token(tmp_path: Path) -> None:
    names = ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜end▁of▁sentence｜>")  # noqa: RUF001
    codec = assert_same_ids(write_byte_level(tmp_path / "x.gguf", "deepseek-v3", *names))
    assert [len(codec.encode_rendered(name)) for name in names] == [1, 1, 1]


@pytest.mark.parametrize(
    ("split", "adds"), [("llama-bpe", True), ("tekken", True), ("smollm", False), ("qwen2", False)]
)
def test_where_a_file_does_not_say_whether_a_prompt_begins_with_bos_its_split_does(
    split: str, adds: bool, tmp_path: Path
) -> None:
    count = len(byte_level()[0])
    path = write_byte_level(tmp_path / "x.gguf", split, "<|begin|>", bos_token_id=count + 2)
    codec = assert_same_ids(path)
    assert (codec.encode_text("hi")[0] == count + 2) is adds


ENDS = {
    "chatml": ("<|endoftext|>", "<|eot_id|>", "<|eom_id|>"),
    "llama3": ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    "gemma": ("<eos>", "<end_of_turn>"),
    "gpt-oss": ("<|return|>", "<|call|>", "<|end|>", "<|channel|>", "<|start|>"),
    "solar": ("<|flush|>", "<|calls|>", "<|end|>"),
    "gemma4": ("<|tool_response>", "</s>", "<turn|>"),
    "code": ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>"),
    "others": ("[EOT]", "[EOS]", "_<EOT>", "<EOT>", "<end_of_utterance>", "[e~[", "</s>"),
}


@pytest.mark.parametrize("names", ENDS)
@pytest.mark.parametrize("stated", ["eos", "none", "eot", "fim_pad"])
def test_end_tokens_are_all_that_llama_cpp_takes_for_one(names: str, stated: str, tmp_path: Path) -> None:
    count = len(byte_level()[0])
    keys: dict[str, Any] = {} if stated in ("eos", "none") else {f"{stated}_token_id": 7}
    if stated == "none":
        keys["eos_token_id"] = 2**31  # past the vocabulary: llama.cpp takes its own default
    path = write_byte_level(tmp_path / "x.gguf", "llama-bpe", *ENDS[names], **keys)
    with by_llama_cpp(path) as theirs:
        ends = theirs.ends()
    assert GgufVocabulary.from_metadata(read_metadata(path), path).end_token_ids() == ends
    assert ends[-1] >= count


def test_names_of_control_tokens_count_though_a_file_calls_them_normal(tmp_path: Path) -> None:
    tokens, merges = byte_level()
    names = ("<|im_start|>", "<|eot_id|>", "<|fim_prefix|>", "<|fim_pad|>")
    types = [gguf.TokenType.NORMAL] * (len(tokens) + len(names))
    path = write(tmp_path / "x.gguf", "gpt2", (*tokens, *names), types, merges=list(merges), pre="qwen2")
    codec = Codec.from_files(load_tokenizer_files(str(path)).files)
    with by_llama_cpp(path) as theirs:
        for name in names:
            assert codec.encode_rendered(f"a{name}b") == theirs.tokenize(f"a{name}b", add_special=False)


@pytest.mark.parametrize("cut", [10, 40, 3000, -4])
def test_a_damaged_file_is_refused_in_one_line(cut: int, tmp_path: Path) -> None:
    path = write_byte_level(tmp_path / "x.gguf", "qwen2")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UnsupportedModelError, match="copy, download or convert it again"):
        load_tokenizer_files(str(path))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("types", "scores", "said"),
    [
        ([1], [0.0, 0.0], "token_type of {} has 1 entries for 2 tokens"),
        ([1, 1, 1], [0.0, 0.0], "token_type of {} has 3 entries for 2 tokens"),
        ([1, 1], [0.0], "scores of {} has 1 entries for 2 tokens"),
        ([1, 1], [0, 0], "scores of {} is no list of float"),
        ([1, 1], ["a", "b"], "scores of {} is no list of float"),
    ],
)
def test_keys_of_tokens_that_contradict_one_another_are_refused(
    kind: str, types: list[Any], scores: list[Any], said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "x.gguf", kind, ["a", "b"], types, scores=scores, merges=["a b"], pre="qwen2")
    with pytest.raises(UnsupportedModelError, match=re.escape(f"tokenizer.ggml.{said.format(path)}; copy, download")):
        load_tokenizer_files(str(path))


def test_pieces_of_one_score_are_merged_by_their_ids_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files that llama.cpp's converter makes without a tokenizer.model have such scores."""
    tokens = ["<unk>", "a", "b", "c", "bc", "ab", "▁"]
    types = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.NORMAL] * 6
    for scores, expected in (([-1000.0] * 7, [1, 4]), ([0.0, -9.0, -9.0, -9.0, -2.0, -1.0, -9.0], [5, 3])):
        caplog.clear()
        path = write(tmp_path / "x.gguf", "llama", tokens, types, scores=scores, add_space_prefix=False)
        codec = Codec.from_files(load_tokenizer_files(str(path)).files)
        assert codec.encode_rendered("abc") == expected
        assert ("llama.cpp merges them from left to right" in caplog.text) is (scores[0] < -1)
