"""A model's tokenizer as files to hand out, with the fingerprint that pairs draft and target."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from slipstream.engine.arithmetic import FIRST_ORDINARY_TOKEN, SCHEME
from slipstream.engine.errors import UnsupportedModelError

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """File contents by name, and a sha256 over the tokenizer's (id, token) pairs."""

    files: dict[str, bytes]
    fingerprint: str


def load_tokenizer_files(model: str) -> TokenizerFiles:
    """The tokenizer of a model directory, hub id or paper model. UnsupportedModelError if there is none."""
    if model.startswith(SCHEME):
        return _bundle(_byte_tokenizer(), {"eos_token": "<|end|>"}, _PAPER_TEMPLATE)
    from transformers import AutoTokenizer  # seconds that the paper model can do without

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
        backend = tokenizer.backend_tokenizer
    except (OSError, ValueError, AttributeError) as error:
        raise UnsupportedModelError(f"{model} has no tokenizer that tokenizers can load: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    template = tokenizer.chat_template
    return _bundle(backend, special, template if isinstance(template, str) else None)


def _bundle(tokenizer: Tokenizer, special_tokens: dict[str, str], template: str | None) -> TokenizerFiles:
    digest = hashlib.sha256()
    for token, index in sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda pair: pair[1]):
        digest.update(f"{index}\t{token}\n".encode())
    files = {TOKENIZER_FILE: tokenizer.to_str().encode(), CONFIG_FILE: json.dumps(special_tokens).encode()}
    if template is not None:
        files[TEMPLATE_FILE] = template.encode()
    return TokenizerFiles(files, digest.hexdigest())


_PAPER_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role[0] }}{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>a{% endif %}"
)


def _byte_tokenizer() -> Tokenizer:
    """Three special tokens, then one token for each byte: ids can be worked out on paper."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<|pad|>", "<|start|>", "<|end|>"]
    assert len(names) == FIRST_ORDINARY_TOKEN
    tokenizer = Tokenizer(BPE({token: index for index, token in enumerate(names + alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(names)
    return tokenizer


def embedded_directory(role: str) -> Path:
    """Where the package keeps the embedded ``target`` or ``draft``."""
    return Path(__file__).resolve().parent.parent / "embedded" / role
