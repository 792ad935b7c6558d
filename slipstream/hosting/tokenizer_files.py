"""Files of a model's tokenizer, with the fingerprint that draft and target have to share."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from slipstream.engine.arithmetic import FIRST_ORDINARY_TOKEN, SCHEME
from slipstream.engine.checkpoint import NO_TRUST, Trust, check_config, directory_of, one_line, refuse_without_torch
from slipstream.engine.errors import UnsupportedModelError
from slipstream.extras import missing
from slipstream.home import expanded
from slipstream.hosting.tokenizer_config import TEMPLATE_FILE, chat_templates, named_special_tokens, needs_transformers
from slipstream.hosting.tokenizer_json import CONFIG_FILE, TOKENIZER_FILE, parts_of, read_tokenizer

log = logging.getLogger(__name__)

_VOCABULARIES = (
    (TOKENIZER_FILE,),
    ("vocab.json", "merges.txt"),
    ("tokenizer.model",),
    ("spiece.model",),
    ("vocab.txt",),
    ("tekken.json",),
)
"""Sets of files that transformers can make a tokenizer of."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """File contents by name, and a sha256 over all that gives ids and their text: vocabulary,
    merges, splits, added tokens."""

    files: dict[str, bytes]
    fingerprint: str
    token_count: int
    """One more than the largest id that a text can have; placeholders for images and the like do
    not count."""


def load_tokenizer_files(
    model: str, trust: Trust = NO_TRUST, *, weights: bool = True, quantised: bool = False
) -> TokenizerFiles:
    """The tokenizer of a model directory, hub id or paper model. UnsupportedModelError if there is
    none, or if this process is to load the ``weights`` and cannot: plain ones, or ``quantised``
    ones too."""
    if model.startswith(SCHEME):
        return _bundle(_byte_tokenizer(), {"eos_token": "<|end|>"}, _PAPER_TEMPLATE)
    if is_gguf(model) and not _has_vocabulary(expanded(model).parent):
        return _of_gguf(expanded(model))
    if is_gguf(model):
        directory = expanded(model).parent
    else:
        directory = directory_of(model, weights=False, trust=trust)
        check_config(directory, model, weights=weights, quantised=quantised)
        _refuse_absent(directory, model)
    try:
        if trust.code or needs_transformers(directory):
            backend, special, templates = _by_transformers(directory, model, trust, quantised)
        else:
            backend = read_tokenizer(directory, model)
            special, templates = named_special_tokens(directory), chat_templates(directory)
    except UnsupportedModelError:
        raise
    except Exception as error:  # any of transformers' and of tokenizers'
        raise UnsupportedModelError(
            f"the tokenizer of {model} cannot be loaded: {one_line(error)}; it needs a whole {TOKENIZER_FILE}"
        ) from error
    _refuse_random(backend, model)
    backend.no_padding()
    backend.no_truncation()
    return _bundle(backend, special, _template_of(templates, model))


def _by_transformers(
    directory: Path, model: str, trust: Trust, quantised: bool
) -> tuple[Tokenizer, dict[str, str], Any]:
    """Return the tokenizer, special tokens and chat templates of a directory, which transformers
    reads. UnsupportedModelError where that is not installed."""
    refuse_without_torch(model, f"a tokenizer without {TOKENIZER_FILE}")
    from transformers import AutoTokenizer

    from slipstream.engine.pretrained.loading import heard, read_config

    if not is_gguf(model):
        read_config(directory, model, trust, quantised=quantised)
    with heard(model):
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=trust.code)
    backend = _backend(directory, model, tokenizer)
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    return backend, special, tokenizer.chat_template


def _of_gguf(path: Path) -> TokenizerFiles:
    from slipstream.hosting.gguf_tokenizer import read_gguf_tokenizer

    try:
        return _bundle(*read_gguf_tokenizer(path))
    except UnsupportedModelError:
        raise
    except Exception as error:  # any of tokenizers'
        raise UnsupportedModelError(
            f"the tokenizer in {path} cannot be read: {one_line(error)}; put the model's {TOKENIZER_FILE} beside it"
        ) from error


def _template_of(templates: Any, model: str) -> str | None:
    """The template that transformers takes for a chat without tools. Some models have several, by
    name."""
    if not isinstance(templates, dict):
        return templates if isinstance(templates, str) else None
    default = templates.get("default")
    if not isinstance(default, str):
        log.warning(
            "%s has chat templates for %s, but none named default: chats are refused",
            model,
            ", ".join(sorted(templates)),
        )
        return None
    return default


def _backend(directory: Path, model: str, by_transformers: Any) -> Tokenizer:
    """The tokenizer that gives ids: tokenizer.json's own, or without that file what transformers
    makes of another."""
    if (directory / TOKENIZER_FILE).exists():
        return read_tokenizer(directory, model, by_transformers)
    backend: Tokenizer = by_transformers.backend_tokenizer
    kind = type(by_transformers).__name__
    log.warning("%s has no %s: its tokenizer is what transformers' %s makes of its files", model, TOKENIZER_FILE, kind)
    return backend


def _refuse_random(tokenizer: Tokenizer, model: str) -> None:
    if getattr(tokenizer.model, "dropout", None):
        raise UnsupportedModelError(
            f"the tokenizer of {model} has a dropout of {tokenizer.model.dropout}, which gives a text other tokens each time: "
            f"remove it from {TOKENIZER_FILE}"
        )


def refuse_tokens_without_rows(tokenizer: TokenizerFiles, row_count: int, model: str) -> None:
    """Raise UnsupportedModelError if a text can have a token without a row in the embedding."""
    if tokenizer.token_count > row_count:
        raise UnsupportedModelError(
            f"the tokenizer of {model} knows {tokenizer.token_count} tokens, but its embedding and logits have {row_count} "
            "rows: give it the tokenizer that it was trained with, or resize its embeddings"
        )


def is_gguf(model: str) -> bool:
    """Return True if a model is a GGUF file. Its tokenizer is in the file or beside it."""
    return model.endswith(".gguf")


def _has_vocabulary(directory: Path) -> bool:
    return any(all((directory / name).exists() for name in names) for names in _VOCABULARIES)


def _refuse_absent(directory: Path, model: str) -> None:
    """Refuse a model without tokenizer files: transformers may make an empty tokenizer of it."""
    if not _has_vocabulary(directory):
        raise UnsupportedModelError(
            f"{model} has no tokenizer: it needs {TOKENIZER_FILE}, which a fast tokenizer's save_pretrained writes"
        )


def _bundle(tokenizer: Tokenizer, special_tokens: dict[str, str], template: str | None) -> TokenizerFiles:
    count = _token_count(tokenizer, special_tokens, template or "")
    files = {TOKENIZER_FILE: tokenizer.to_str().encode(), CONFIG_FILE: json.dumps(special_tokens).encode()}
    if template is not None:
        files[TEMPLATE_FILE] = template.encode()
    return TokenizerFiles(files, _fingerprint(tokenizer), count)


def _fingerprint(tokenizer: Tokenizer) -> str:
    """Return the sha256 of all that ids and their text depend on.

    Tokens around a raw prompt are left out, because the target alone adds them.
    """
    digest = hashlib.sha256()
    for token, index in sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda pair: pair[1]):
        digest.update(f"{index}\t{token}\n".encode())
    model = json.loads(tokenizer.to_str())["model"]
    if isinstance(model.get("vocab"), dict):  # it is in the digest already
        del model["vocab"]
    said = {name: value for name, value in model.items() if value not in (None, "")}
    digest.update(json.dumps([parts_of(tokenizer), said], sort_keys=True).encode())
    return digest.hexdigest()


def _token_count(tokenizer: Tokenizer, special_tokens: dict[str, str], template: str) -> int:
    ends = {special_tokens.get(name) for name in ("bos_token", "eos_token")}
    placeholders = {
        index
        for index, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and token.content not in template and token.content not in ends
    }
    return 1 + max(set(tokenizer.get_vocab(with_added_tokens=True).values()) - placeholders, default=-1)


_PAPER_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role[0] }}{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>a{% endif %}"
)


def _byte_tokenizer() -> Tokenizer:
    """Return a tokenizer of three special tokens and one token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<|pad|>", "<|start|>", "<|end|>"]
    assert len(names) == FIRST_ORDINARY_TOKEN
    tokenizer = Tokenizer(BPE({token: index for index, token in enumerate(names + alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(names)
    return tokenizer


def embedded_directory(role: str) -> Path:
    """Return the package's folder of the embedded ``target`` or ``draft``. UnsupportedModelError if
    the pair is not installed."""
    if command := missing("embedded"):
        raise UnsupportedModelError(f"the embedded pair is not installed: {command}")
    return Path(__file__).resolve().parent.parent / "embedded" / role
