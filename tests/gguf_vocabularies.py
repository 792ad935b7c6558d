"""GGUF files that hold a vocabulary alone, and llama.cpp's own tokenization of it."""

# ruff: noqa: RUF001 (texts have full-width characters)

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from slipstream.engine.llamacpp import libllama
from tests.tokenizer_models import CASES, CORPUS

TEXTS = (
    *CORPUS,
    "I'LL say they've DON'T it's 'Tis 12 345 6789 1234567890 3.14 1,000,000",
    "camelCase HTTPServer ÉCOLE Größe ǅungla ЖЗИ кто ١٢٣ Ⅷ ½ ²",
    "a\n\nb\r\n c \n\n\n  d\t\te   \n   f  ",
    "中文字符，测试。ひらがな カタカナ 한국어 ㄱㄴ ภาษาไทย हिन्दी العربية",
    "!?... (a) [b] {c} <d> @e #f $g %h ^i &j *k _l |m ~n `o` 🙂🙃 e\u0301",
    "x=1;y+=2//z == <= >= -> :: ... $100 50% a_b-c",
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    " leading", "trailing ", "", " ", "\n",
)  # fmt: skip


def write(path: Path, kind: str, tokens: Sequence[str], types: Sequence[int], **keys: Any) -> Path:
    """A file with these tokens; ``keys`` are of the section tokenizer.ggml, ``name`` is the
    model's."""
    writer: Any = gguf.GGUFWriter(str(path), "llama")
    writer.add_name(keys.pop("name", "tiny"))
    writer.add_tokenizer_model(kind)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(types))
    for key, value in keys.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}[
            type(value)
        ]
        add(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@functools.cache
def byte_level() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens and merges of a vocabulary that knows no splits, so that each split shows in the
    ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), max_token_length=8, show_progress=False
    )
    tokenizer.train_from_iterator([text for text in TEXTS for _ in range(2)], trainer)
    said = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(said["vocab"], key=said["vocab"].__getitem__)
    return tuple(tokens), tuple(" ".join(merge) for merge in said["merges"])


def write_byte_level(path: Path, split: str | None, *controls: str, **keys: Any) -> Path:
    """A file with that vocabulary, split as ``split`` says."""
    tokens, merges = byte_level()
    named = ("<|im_start|>", "<|im_end|>", *controls)
    types = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * len(named)
    said = {} if split is None else {"pre": split}
    keys.setdefault("eos_token_id", len(tokens) + 1)
    return write(path, "gpt2", (*tokens, *named), types, merges=list(merges), **said, **keys)


def write_sentencepiece(path: Path, *controls: str, **keys: Any) -> Path:
    """A file with the pieces of a small Llama 2."""
    build = next(case for case in CASES if case.name == "llama2-legacy").build
    vocabulary = build().get_vocab(with_added_tokens=False)
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    tokens = (*pieces, *controls)
    kinds = {"<unk>": gguf.TokenType.UNKNOWN, "<s>": gguf.TokenType.CONTROL, "</s>": gguf.TokenType.CONTROL}
    types = [
        kinds.get(piece, gguf.TokenType.BYTE if piece.startswith("<0x") else gguf.TokenType.NORMAL) for piece in pieces
    ]
    types += [gguf.TokenType.CONTROL] * len(controls)
    scores = [-float(index) for index in range(len(tokens))]
    return write(path, "llama", tokens, types, scores=scores, **keys)


class ByLlamaCpp:
    """A file's vocabulary in llama.cpp."""

    def __init__(self, path: Path) -> None:
        self._library = libllama.load()
        params = self._library.llama_model_default_params()
        params.n_gpu_layers, params.vocab_only = 0, True
        libllama.messages.clear()
        self._model = self._library.llama_model_load_from_file(str(path).encode(), params)
        assert self._model, libllama.messages
        self._vocabulary = self._library.llama_model_get_vocab(self._model)

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        data, room = text.encode(), 4 * len(text.encode()) + 16
        ids = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(self._vocabulary, data, len(data), ids, room, add_special, True)
        assert count >= 0
        return list(ids[:count])

    def ends(self) -> tuple[int, ...]:
        count = self._library.llama_vocab_n_tokens(self._vocabulary)
        return tuple(token for token in range(count) if self._library.llama_vocab_is_eog(self._vocabulary, token))

    def close(self) -> None:
        self._library.llama_model_free(self._model)
