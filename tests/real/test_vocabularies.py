"""Vocabularies of real size in GGUF files: the ids are llama.cpp's.

Where llama.cpp's own differ from tokenizer.json's, so do ours: it composes no accents (Qwen 3),
splits Indian scripts otherwise (gpt-oss), and merges SentencePiece's pieces by their scores.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer

from orchestrator.sessions.conversation.codec import Codec
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from tests.gguf_vocabularies import ByLlamaCpp, write
from tests.real.texts import TEXTS

SPLITS = {"deepseek_v3": "deepseek-v3", "gptoss": "gpt-4o", "llama3": "llama-bpe", "qwen3": "qwen2"}
"""What the files of byte-level tokenizers say of how they split text."""

AGREE = ("deepseek_v3", "llama3")
"""Models whose GGUF files have the ids of tokenizer.json for every text here."""


@pytest.mark.parametrize("name", [*SPLITS, "llama2", "gemma3"])
def test_the_ids_of_a_gguf_file_are_those_of_llama_cpp(name: str, tokenizers: Path, tmp_path: Path) -> None:
    path = written(tokenizers / name, tmp_path / "x.gguf")
    codec, own = (
        Codec.from_files(load_tokenizer_files(str(path)).files),
        Tokenizer.from_file(str(tokenizers / name / "tokenizer.json")),
    )
    theirs = ByLlamaCpp(path)
    try:
        for text in TEXTS:
            ids = codec.encode_rendered(text)
            assert ids == theirs.tokenize(text, add_special=False), text[:100]
            if name in AGREE:
                assert ids == own.encode(text, add_special_tokens=False).ids, text[:100]
    finally:
        theirs.close()


def written(directory: Path, path: Path) -> Path:
    """The tokenizer of a directory as a GGUF file."""
    said = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab(with_added_tokens=True)
    tokens = [f"[UNUSED_{index}]" for index in range(1 + max(vocabulary.values()))]
    types = [gguf.TokenType.UNUSED] * len(tokens)
    for token, index in vocabulary.items():
        tokens[index], types[index] = token, gguf.TokenType.NORMAL
    for added in said["added_tokens"]:
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    config = json.loads((directory / "tokenizer_config.json").read_text())
    keys: dict[str, Any] = {"eos_token_id": vocabulary[content_of(config["eos_token"])]}
    if directory.name in SPLITS:
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in said["model"]["merges"]]
        return write(path, "gpt2", tokens, types, merges=merges, pre=SPLITS[directory.name], **keys)
    for index, token in enumerate(tokens):
        if token.startswith("<0x") and len(token) == len("<0x00>"):
            types[index] = gguf.TokenType.BYTE
    types[vocabulary["<unk>"]] = gguf.TokenType.UNKNOWN
    keys |= {"bos_token_id": vocabulary["<s>" if directory.name == "llama2" else "<bos>"]}
    keys |= {"unknown_token_id": vocabulary["<unk>"], "add_space_prefix": directory.name == "llama2"}
    return write(path, "llama", tokens, types, scores=[-float(index) for index in range(len(tokens))], **keys)


def content_of(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])
