"""Finds the special tokens that transformers' tokenizer class names where no file does.

A chat template may use such a name, so a prompt depends on it. The classes are those of the
families that are read without transformers. Tests compare the tokens with transformers'.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.engine.checkpoint import CONFIG
from slipstream.hosting.tokenizer_json import CONFIG_FILE, TOKENIZER_FILE, read_json

log = logging.getLogger(__name__)

PLAIN_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Classes of transformers that follow tokenizer.json as it is, and name no token."""

_GPT2 = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")

CLASS_DEFAULTS: dict[str, dict[str, str]] = {
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
    "GPT2Tokenizer": _GPT2,
    "GPTNeoXTokenizer": _GPT2 | {"pad_token": "<|padding|>"},
}
"""Tokens that a class names by default, in the vocabulary or not."""

_CLASS_OF_TYPE = {"mistral": PLAIN_CLASSES[0], "qwen2": "Qwen2Tokenizer"}
"""Model types that transformers takes one class for, whichever the files name."""

_DEFAULT_OF_TYPE = dict.fromkeys(("qwen2", "qwen3"), "Qwen2Tokenizer")
"""Classes of model types whose files name none. Of other types transformers takes a plain one."""


def default_tokens(directory: Path) -> Mapping[str, str]:
    """Return the special tokens that a directory's tokenizer class names by default."""
    name = _class_of(directory)
    if name not in CLASS_DEFAULTS and name not in PLAIN_CLASSES:
        log.warning(
            "%s: tokenizer_class %r is not known here without transformers: special tokens that no file names "
            "are empty in the chat template",
            directory,
            name,
        )
    return CLASS_DEFAULTS.get(name, {})


def _class_of(directory: Path) -> str:
    """Return the class that transformers takes for a directory with a tokenizer.json."""
    config, beside = read_json(directory / CONFIG), read_json(directory / CONFIG_FILE)
    stated = beside.get("tokenizer_class")
    if stated in PLAIN_CLASSES:  # as which it is read with transformers too
        return str(stated)
    kind, brings_code = str(config.get("model_type")), _brings_code(beside.get("auto_map"))
    if kind in _CLASS_OF_TYPE and not brings_code:
        return _CLASS_OF_TYPE[kind]
    named = stated or config.get("tokenizer_class") or _DEFAULT_OF_TYPE.get(kind, PLAIN_CLASSES[0])
    name = str(named) if named in PLAIN_CLASSES else str(named).removesuffix("Fast")
    if name == "LlamaTokenizer" and not brings_code and _is_byte_level(directory):
        return PLAIN_CLASSES[0]
    return name


def _brings_code(auto_map: Any) -> bool:
    """Return True if a file names a tokenizer class of its own, for which transformers believes the
    class beside it."""
    return bool(auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else auto_map)


def _is_byte_level(directory: Path) -> bool:
    return '"ByteLevel"' in (directory / TOKENIZER_FILE).read_text(encoding="utf-8")
