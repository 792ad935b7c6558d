"""Reading tokenizer.json as it is, with the tokens that tokenizer_config.json adds to it.

transformers builds the tokenizer of a class like GPT2Tokenizer from the file's vocabulary alone,
and so may split text in another way. The file is followed here. A key beside it is followed too, or
refused, or named in a warning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from slipstream.engine.errors import UnsupportedModelError

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
_MAP_FILE = "special_tokens_map.json"
_ADDED_FILE = "added_tokens.json"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTED = ("extra_special_tokens", "additional_special_tokens")

log = logging.getLogger(__name__)


def read_tokenizer(directory: Path, model: str, by_transformers: Any = None) -> Tokenizer:
    """Return the tokenizer of a directory's tokenizer.json; warn where ``by_transformers``,
    transformers' own if given, is another.

    UnsupportedModelError for what cannot be followed.
    """
    tokenizer = Tokenizer.from_file(str(directory / TOKENIZER_FILE))
    config = read_json(directory / CONFIG_FILE)
    if config.get("split_special_tokens"):
        raise UnsupportedModelError(
            f"{CONFIG_FILE} of {model} sets split_special_tokens, which reads special tokens of a chat template as "
            "text: remove it"
        )
    _add_tokens(tokenizer, directory, config, model)
    for line in (*_unfollowed(tokenizer, config), *_differences(tokenizer, by_transformers)):
        log.warning("%s: %s", model, line)
    return tokenizer


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file, empty if there is no file or no object."""
    if not path.exists():
        return {}
    said = json.loads(path.read_text(encoding="utf-8"))
    return said if isinstance(said, dict) else {}


def _add_tokens(tokenizer: Tokenizer, directory: Path, config: Mapping[str, Any], model: str) -> None:
    """Add what the files beside tokenizer.json say of tokens, in transformers' order."""
    stated = config.get("added_tokens_decoder")
    if stated is not None:
        tokens = {int(index): token for index, token in stated.items()}
    else:
        tokens = {index: {"content": content} for content, index in read_json(directory / _ADDED_FILE).items()}
    _add_at(tokenizer, sorted(tokens.items()), model, overrides=stated is not None)
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_special_tokens(
        [token for token in _special_tokens(named_tokens(directory)) if token.content not in known]
    )


def named_tokens(directory: Path) -> Mapping[str, Any]:
    """Return what the files beside tokenizer.json say of tokens with names, in transformers'
    order."""
    config = read_json(directory / CONFIG_FILE)
    return config if config.get("added_tokens_decoder") is not None else {**config, **read_json(directory / _MAP_FILE)}


def _add_at(
    tokenizer: Tokenizer, listed: Sequence[tuple[int, Mapping[str, Any]]], model: str, *, overrides: bool
) -> None:
    """Add tokens under their ids, or give them the flags that are said of them.

    They are added by one call, since each call takes as long as there are added tokens. Gemma 3 has
    6,415.
    """
    added: list[AddedToken] = []
    for index, said in listed:
        known = tokenizer.token_to_id(said["content"])
        if known is None or (overrides and known == index):
            flags = {name: bool(said[name]) for name in _FLAGS if name in said}
            added.append(AddedToken(said["content"], **flags))
    tokenizer.add_tokens(added)
    for index, said in listed:
        known = tokenizer.token_to_id(said["content"])
        if known != index:
            raise UnsupportedModelError(
                f"the tokenizer of {model} lists {said['content']!r} as token {index}, but in its {TOKENIZER_FILE} "
                f"that is token {known}: make {CONFIG_FILE} and {TOKENIZER_FILE} agree"
            )


def _special_tokens(named: Mapping[str, Any]) -> Iterator[AddedToken]:
    listed = [token for key in _LISTED for token in _values(named.get(key))]
    for said in (*(named.get(key) for key in NAMED), *listed):
        if isinstance(said, str) and said:
            yield AddedToken(said, special=True, normalized=False)
        elif isinstance(said, dict) and said.get("content"):
            flags = {name: bool(said[name]) for name in _FLAGS if name in said}
            yield AddedToken(said["content"], **{**flags, "special": True})


def _values(said: Any) -> list[Any]:
    if isinstance(said, dict):
        return list(said.values())
    return list(said) if isinstance(said, list) else []


def _unfollowed(tokenizer: Tokenizer, config: Mapping[str, Any]) -> Iterator[str]:
    """Keys of tokenizer_config.json that say something else than tokenizer.json does."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    around = {"add_bos_token": whole[:1] != bare[:1], "add_eos_token": whole[-1:] != bare[-1:]}
    for key, does in around.items():
        said = config.get(key)
        if isinstance(said, bool) and said != does:
            what = "adds such a token to" if does else "adds no such token to"
            yield f"{key} is {said} in {CONFIG_FILE}, but {TOKENIZER_FILE} {what} raw prompts: {TOKENIZER_FILE} is followed"
    prefix, said = _prefix_space(tokenizer), config.get("add_prefix_space")
    if isinstance(said, bool) and prefix is not None and said != prefix:
        yield f"add_prefix_space is {said} in {CONFIG_FILE}, but {prefix} in {TOKENIZER_FILE}: {TOKENIZER_FILE} is followed"
    if config.get("clean_up_tokenization_spaces") and type(tokenizer.model).__name__ != "BPE":
        yield f"clean_up_tokenization_spaces of {CONFIG_FILE} is not followed: text keeps its spaces"


def _prefix_space(tokenizer: Tokenizer) -> bool | None:
    """Return True if the file puts a space before a text; None if the file does not say."""
    said = json.dumps(parts_of(tokenizer)["pre_tokenizer"]) + json.dumps(parts_of(tokenizer)["normalizer"])
    if '"add_prefix_space": true' in said or '"Prepend"' in said:
        return True
    if '"prepend_scheme": ' in said:
        return '"prepend_scheme": "never"' not in said
    return False if '"add_prefix_space": false' in said else None


def _differences(tokenizer: Tokenizer, by_transformers: Any) -> Iterator[str]:
    """Yield a warning if transformers' class tokenizes in another way than the file."""
    backend = getattr(by_transformers, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return
    ours, theirs = parts_of(tokenizer), parts_of(backend)
    other = [name for name in ours if ours[name] != theirs[name]]
    if other:
        yield (
            f"{TOKENIZER_FILE} is followed as it is; transformers' {type(by_transformers).__name__} takes another "
            f"{', '.join(other)}, and may give other ids"
        )


def parts_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a tokenizer's steps around its vocabulary, with the flags of added tokens."""
    parts = {name: _state(getattr(tokenizer, name)) for name in ("normalizer", "pre_tokenizer", "decoder")}
    added = tokenizer.get_added_tokens_decoder().items()
    tokens = {token.content: [index, *(getattr(token, name) for name in _FLAGS)] for index, token in sorted(added)}
    return {**parts, "added_tokens": tokens}


def _state(part: Any) -> Any:
    if part is None:
        return None
    return _that_counts(json.loads(part.__getstate__()))


def _that_counts(state: Any) -> Any:
    """Without what no id and no text depends on."""
    if isinstance(state, list):
        return [_that_counts(each) for each in state]
    if isinstance(state, dict):
        return {name: _that_counts(value) for name, value in state.items() if name != "trim_offsets"}
    return state
