"""The tokens of a GGUF file, and which of them llama.cpp treats as special or as ends of a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.gguf_metadata import AGAIN

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Token types (``tokenizer.ggml.token_type``) that are read here."""

_SECTION = "tokenizer.ggml."

_ENDS = frozenset(
    (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "[e~[",
    )
)
"""Names of tokens that end a text, regardless of their type in the file."""

_FILL_IN = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Tokens of code models that end a text too, by the file's key or else by name."""

_CONTROLS = frozenset(
    (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>", "\u2581<PRE>"),
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>", "\u2581<SUF>"),
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>", "<MID>", "\u2581<MID>"),
        *("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", "<|prefix|>", "<|suffix|>", "<|middle|>"),
        *(name for names in _FILL_IN.values() for name in names),
        *_ENDS,
    )
)
"""Names of control tokens that some files mark as normal."""

_SHOWN = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))
"""gpt-oss's tokens that are text although the file marks them as control tokens."""

_DEFAULT_IDS = {"llama": {"bos": 1, "eos": 2, "unknown": 0}, "gpt2": {"bos": 11, "eos": 11}}
"""Default ids by kind of tokenizer, for files that do not give them."""


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokens of a GGUF file."""

    kind: str
    """``tokenizer.ggml.model``: llama (SentencePiece) or gpt2 (byte-level BPE). No other kind is
    read."""
    split: str
    """``tokenizer.ggml.pre``."""
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    """Places of SentencePiece's merges: those of higher scores come first."""
    ids: dict[str, int | None]
    """Ids of bos, eos and other special tokens by name; None if there is no such token."""

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], path: Path) -> GgufVocabulary:
        """Read the vocabulary from the keys of the file at ``path``. UnsupportedModelError if they
        are damaged."""
        said = {key.removeprefix(_SECTION): value for key, value in metadata.items() if key.startswith(_SECTION)}
        tokens = _listed(path, said, "tokens", str)
        types = _listed(path, said, "token_type", int) or [NORMAL] * len(tokens)
        scores = _listed(path, said, "scores", float) or [0.0] * len(tokens)
        for key, values in (("token_type", types), ("scores", scores)):
            if len(values) != len(tokens):
                raise UnsupportedModelError(
                    f"{_SECTION}{key} of {path} has {len(values)} entries for {len(tokens)} tokens; {AGAIN}"
                )
        kind, split = str(said.get("model", "none")), str(said.get("pre", "default"))
        names = ("bos", "eos", "eot", "eom", "unknown", "padding", *_FILL_IN)
        defaults = dict(_DEFAULT_IDS.get(kind, {}))
        if split in ("glm4", "chatglm-bpe"):
            defaults.pop("bos", None)
        ids = {name: _id(said, name, defaults.get(name), len(tokens)) for name in names}
        return cls(kind, split, tokens, types, scores, ids)

    def end_token_ids(self) -> tuple[int, ...]:
        """Return all tokens that end a text, the same ones as ``llama_vocab_is_eog``."""
        by_name = {token: index for index, token in enumerate(self.tokens)}
        ends = {by_name[name] for name in _ENDS if name in by_name}
        stated = [self.ids[name] for name in ("eos", "eot", "eom")]
        for key, names in _FILL_IN.items():
            by_names = [by_name[name] for name in names if name in by_name]
            stated += by_names[:1] if self.ids[key] is None else [self.ids[key]]
        kept = ends | {index for index in stated if index is not None}
        return tuple(sorted(kept - set(self._not_ends({self.tokens[index] for index in kept}, by_name))))

    def types_of_tokens(self) -> list[int]:
        """Return the type of each token. Names of control tokens override the file."""
        types = list(self.types)
        by_name = {token: index for index, token in enumerate(self.tokens)}
        for name in _CONTROLS & by_name.keys():
            types[by_name[name]] = CONTROL
        for name in _SHOWN & by_name.keys():
            types[by_name[name]] = USER_DEFINED
        for index in self._not_ends(_ENDS & by_name.keys(), by_name):
            types[index] = USER_DEFINED if self.tokens[index] == "<|end|>" else NORMAL
        return types

    @staticmethod
    def _not_ends(names: set[str] | frozenset[str], by_name: dict[str, int]) -> Iterator[int]:
        """Yield tokens that are not ends when certain other ends exist: those of gpt-oss, Solar and
        Gemma 4."""
        harmony = "<|return|>" in names and names & {"<|call|>", "<|calls|>"}
        solar = "<|flush|>" in names and names & {"<|call|>", "<|calls|>"}
        if "<|end|>" in names and (harmony or solar):
            yield by_name["<|end|>"]
        if "<|tool_response>" in names and "</s>" in names:
            yield by_name["</s>"]


def _listed(path: Path, said: Mapping[str, Any], key: str, of: type) -> list[Any]:
    """Return a key's list of values of a type, empty if the file has none."""
    values = said.get(key, [])
    if not isinstance(values, list) or not all(isinstance(each, of) for each in values):
        raise UnsupportedModelError(f"{_SECTION}{key} of {path} is no list of {of.__name__}; {AGAIN}")
    return values


def _id(said: Mapping[str, Any], name: str, default: int | None, count: int) -> int | None:
    stated = said.get(f"{name}_token_id")
    if isinstance(stated, int) and 0 <= stated < count:
        return stated
    return default if default is not None and default < count else None
