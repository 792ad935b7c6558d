"""The tokenizer in a GGUF file, with the ids that llama.cpp gives.

A tokenizer that cannot be reproduced is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.gguf_metadata import read_metadata
from slipstream.engine.gguf_vocabulary import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, GgufVocabulary
from slipstream.hosting.gguf_splits import GPT2, SPLITS, Splits

_SPACE = "\u2581"
_BESIDE = "put the model's tokenizer.json beside it"
_NO_RSTRIP = ("<unk>", "<s>", "<|endoftext|>")
"""Special tokens of Phi-3 that leave the spaces after them; the others take them."""

log = logging.getLogger(__name__)


def read_gguf_tokenizer(path: Path) -> tuple[Tokenizer, dict[str, str], str | None]:
    """Return a file's tokenizer, its special tokens by transformers' names, and its chat template
    if it has one.

    UnsupportedModelError for an unknown tokenizer.
    """
    said = read_metadata(path)
    vocabulary = GgufVocabulary.from_metadata(said, path)
    if vocabulary.kind == "gpt2":
        tokenizer, splits = _byte_level(said, vocabulary, path), SPLITS[vocabulary.split]
    elif vocabulary.kind == "llama":
        tokenizer, splits = _sentencepiece(said, vocabulary, path), Splits((), adds_bos=True)
    else:
        raise UnsupportedModelError(
            f"{path} has a tokenizer of kind {vocabulary.kind!r}, which cannot be read from a GGUF file: {_BESIDE}"
        )
    # By two calls, since each takes as long as there are added tokens: Gemma 3 has thousands.
    added = list(_added(vocabulary, str(said.get("general.name", ""))))
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    tokenizer.post_processor = _around(said, vocabulary, splits)
    return tokenizer, _special(vocabulary), said.get("tokenizer.chat_template")


def _byte_level(said: Mapping[str, Any], vocabulary: GgufVocabulary, path: Path) -> Tokenizer:
    if vocabulary.split not in SPLITS:
        raise UnsupportedModelError(
            f"{path} splits text as {vocabulary.split!r} (tokenizer.ggml.pre), which is unknown here: {_BESIDE}"
        )
    if said.get("tokenizer.ggml.pre") is None:
        log.warning("%s does not say how it splits text (tokenizer.ggml.pre): it is split as llama.cpp's default", path)
    splits = SPLITS[vocabulary.split]
    merges = [_pair(merge) for merge in said.get("tokenizer.ggml.merges") or []]
    tokenizer = Tokenizer(BPE(_ids(vocabulary), merges, ignore_merges=splits.ignores_merges))
    tokenizer.pre_tokenizer = _splitting(splits.expressions)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _splitting(expressions: Sequence[str]) -> Any:
    """Return the splits as one pre-tokenizer. ByteLevel does GPT-2's split itself if it is the
    last."""
    own = expressions[-1] == GPT2
    before = [pre_tokenizers.Split(Regex(each), "isolated") for each in (expressions[:-1] if own else expressions)]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own)
    return pre_tokenizers.Sequence([*before, last]) if before else last


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")  # a piece may begin with a space
    return merge[0] + left, right


def _sentencepiece(said: Mapping[str, Any], vocabulary: GgufVocabulary, path: Path) -> Tokenizer:
    """Return a BPE tokenizer whose merges are in the order of the pieces' scores, and of equal
    scores in the order of the ids."""
    begins_with_space = said.get("tokenizer.ggml.add_space_prefix")
    ids = _ids(vocabulary)
    merges = list(_merges(ids, vocabulary.scores))
    merged = {index for left, right in merges if vocabulary.types[index := ids[left + right]] == NORMAL}
    if len({vocabulary.scores[index] for index in merged}) < len(merged):
        log.warning(
            "%s gives several pieces one score: they are merged in the order of their ids, as a tokenizer.json does; "
            "llama.cpp merges them from left to right",
            path,
        )
    unknown = vocabulary.ids["unknown"]
    tokenizer = Tokenizer(
        BPE(
            ids,
            merges,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if begins_with_space is None or begins_with_space:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges(ids: dict[str, int], scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    for piece, _ in sorted(ids.items(), key=lambda pair: -scores[pair[1]]):
        for at in range(1, len(piece)):
            if piece[:at] in ids and piece[at:] in ids:
                yield piece[:at], piece[at:]


def _ids(vocabulary: GgufVocabulary) -> dict[str, int]:
    return {token or f"[EMPTY_{index}]": index for index, token in enumerate(vocabulary.tokens)}


def _added(vocabulary: GgufVocabulary, name: str) -> Iterator[AddedToken]:
    """Yield the tokens that are found before the text is split."""
    strips = any(each in name.lower() for each in ("phi-3", "phi3"))
    for token, kind in zip(vocabulary.tokens, vocabulary.types_of_tokens(), strict=True):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            rstrip = strips and token not in _NO_RSTRIP
            yield AddedToken(token, special=kind != USER_DEFINED, normalized=False, rstrip=rstrip)


def _around(said: Mapping[str, Any], vocabulary: GgufVocabulary, splits: Splits) -> Any:
    """Return the post-processor that adds tokens before and after a raw prompt."""
    adds = {"bos": said.get("tokenizer.ggml.add_bos_token"), "eos": said.get("tokenizer.ggml.add_eos_token")}
    adds["bos"] = splits.adds_bos if adds["bos"] is None else adds["bos"]
    tokens = {
        name: (vocabulary.tokens[index], index)
        for name, index in vocabulary.ids.items()
        if index is not None and adds.get(name)
    }
    before, after = ([tokens[name][0]] if name in tokens else [] for name in ("bos", "eos"))
    return processors.TemplateProcessing(
        single=[*before, "$A", *after], pair=[*before, "$A", "$B", *after], special_tokens=list(tokens.values())
    )


def _special(vocabulary: GgufVocabulary) -> dict[str, str]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    types = vocabulary.types_of_tokens()
    return {
        names[name]: vocabulary.tokens[index]
        for name, index in vocabulary.ids.items()
        if name in names and index is not None and types[index] in (UNKNOWN, CONTROL, USER_DEFINED)
    }
