"""Reads the files beside tokenizer.json: which special tokens have names, and the chat template.

What transformers makes of these files is made here without it. Tests compare both.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.hosting.tokenizer_defaults import PLAIN_CLASSES, default_tokens
from slipstream.hosting.tokenizer_json import CONFIG_FILE, NAMED, TOKENIZER_FILE, named_tokens, read_json

TEMPLATE_FILE = "chat_template.jinja"
_MORE_TEMPLATES = "additional_chat_templates"


def needs_transformers(directory: Path) -> bool:
    """Return True if transformers has to read a tokenizer.

    It builds tokenizers of other files than tokenizer.json. Where it is installed, it also shows
    whether its class would split text in another way.
    """
    if not (directory / TOKENIZER_FILE).exists():
        return True
    is_plain = read_json(directory / CONFIG_FILE).get("tokenizer_class") in PLAIN_CLASSES
    return not is_plain and find_spec("transformers") is not None


def named_special_tokens(directory: Path) -> dict[str, str]:
    """Return the text of the special tokens that have a name, such as ``eos_token``.

    The files come first, then what the tokenizer's class names by default.
    """
    named = {**default_tokens(directory), **named_tokens(directory)}
    found = {name: _text_of(named.get(name)) for name in NAMED}
    return {name: text for name, text in found.items() if text is not None}


def _text_of(said: Any) -> str | None:
    if isinstance(said, Mapping):
        said = said.get("content")
    return said if isinstance(said, str) else None


def chat_templates(directory: Path) -> str | dict[str, str] | None:
    """Return the chat template, or several by their names, or None."""
    templates = read_json(directory / CONFIG_FILE).get("chat_template")
    if isinstance(templates, list):
        templates = {each["name"]: each["template"] for each in templates}
    file, more = directory / TEMPLATE_FILE, sorted((directory / _MORE_TEMPLATES).glob("*.jinja"))
    if not file.exists() and not more:
        return templates if isinstance(templates, (str, dict)) else None
    default = {"default": file.read_text(encoding="utf-8")} if file.exists() else {}
    if not more:
        return default["default"]
    return default | {each.stem: each.read_text(encoding="utf-8") for each in more}
