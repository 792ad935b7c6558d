"""Forty tokenizer files after what well-known models use, with small vocabularies that are trained
here."""

# ruff: noqa: RUF001 (models' special tokens and texts have full-width characters)

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "Hello there, how are you today? I am fine, thank you. It's 2023 and we've counted 12345 items.",
    "def total(items):\n    result = 0\n    for item in items:\n        result += item\n    return result\n",
    "The answer is 42.\n\nThe next answer is 1,234,567.89, which they'll DOUBLE.\n",
    "Zażółć gęślą jaźń. Größe, naïve café, ﬁne ﬀ Ⅷ. 你好，世界！今天天气很好。 Привет, мир! こんにちは",
    "assistant user system answer question Return the number of items in a list. 100% $5 #tag @name",
    "   leading spaces\tand tabs  and  runs   of    spaces \n \n end",
]
QUESTIONS = ("How many items? 2023 or 12345?", "  def f(x):\n        return x  ", "你好 café, they'll\n\nDOUBLE it!")
ANSWERS = ("There are 42 items.\n    Indented.", "The end", "Größe 1234567: naïve ﬁne…")

GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace("{1,3}", "")
O200K_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
VICUNA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} ASSISTANT:"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PHI3 = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}<｜Assistant｜>"
    "{% else %}{{ m.content }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
)
ALPACA = (
    "{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n### Response:\n"
    "{% else %}{{ m.content }}\n\n{% endif %}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n"
    "{% else %}<|im_start|>assistant\n{{ m.content.split('items')[-1] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TokenizerCase:
    """One tokenizer: how it is built, the template it comes with, and what tokenizer_config.json
    says."""

    name: str
    build: Callable[[], Tokenizer]
    template: str
    specials: dict[str, str]
    config: dict[str, Any] = field(default_factory=dict)
    model_type: str = "llama"

    def write(self, directory: Path, **config: Any) -> Path:
        """A directory as a checkpoint has it, without weights; ``config`` adds to
        tokenizer_config.json."""
        directory.mkdir(parents=True, exist_ok=True)
        _built(self.name).save(str(directory / "tokenizer.json"))
        said = {"tokenizer_class": "TokenizersBackend", **self.specials, **self.config, **config}
        (directory / "tokenizer_config.json").write_text(json.dumps(said))
        (directory / "chat_template.jinja").write_text(self.template)
        (directory / "config.json").write_text(json.dumps({"model_type": self.model_type}))
        return directory


@functools.cache
def _built(name: str) -> Tokenizer:
    return next(case for case in CASES if case.name == name).build()


def _split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)


def _byte_level(
    *before: Any,
    specials: tuple[str | AddedToken, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    prefix_space: bool = False,
    use_regex: bool = False,
    normalizer: Any = None,
    ignore_merges: bool = False,
    trim_offsets: bool | None = None,
) -> Tokenizer:
    """Byte-level BPE behind the splits ``before``."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, last]) if before else last
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.decoder = decoders.ByteLevel()
    if trim_offsets is not None:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def _sentencepiece(
    normalizer: Any,
    pre_tokenizer: Any = None,
    *,
    specials: tuple[str | AddedToken, ...] = (),
    strips: bool = True,
    byte_fallback: bool = True,
) -> Tokenizer:
    """BPE over pieces with ▁, as SentencePiece's models come."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback))
    lines = pre_tokenizers.Split("\n", "removed")  # as in SentencePiece's models, where a line's end is a byte
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([lines, pre_tokenizers.Metaspace(prepend_scheme="always")])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    tokenizer.train_from_iterator(
        CORPUS[:3],
        trainers.BpeTrainer(vocab_size=560, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False),
    )
    said = json.loads(tokenizer.to_str())
    said["added_tokens"] = [token for token in said["added_tokens"] if token["content"] not in bytes_]
    runs = ["▁" * length for length in (2, 4, 8)]
    for run in runs:  # Llama 2 has runs of spaces as tokens
        said["model"]["vocab"].setdefault(run, len(said["model"]["vocab"]))
    said["model"]["merges"] += [[run[: len(run) // 2]] * 2 for run in runs]
    said["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(said))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if strips else [])])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def _legacy() -> Any:
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def _metaspace(scheme: Any, *, split: bool = False) -> Any:
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


def _unigram(normalizer: Any, scheme: Any, specials: tuple[str, ...] = ()) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = _metaspace(scheme, split=True)
    trainer = trainers.UnigramTrainer(
        vocab_size=220, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def _word_piece(*, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=names, show_progress=False)
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def _flagged(*contents: str, special: bool = True, **flags: bool) -> tuple[AddedToken, ...]:
    return tuple(AddedToken(content, special=special, **{"normalized": False, **flags}) for content in contents)


def _digits(*, individual: bool) -> Any:
    return pre_tokenizers.Digits(individual_digits=individual)


_ENDS = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
_PIECES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_LLAMA3 = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
_LLAMA3_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_DEEPSEEK = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
_DEEPSEEK_TOKENS = (*_DEEPSEEK.values(), "<｜User｜>", "<｜Assistant｜>")
_PHI3_TOKENS = _flagged("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", rstrip=True)
_GEMMA = {"bos_token": "<s>", "eos_token": "<end_of_turn>"}
_TURNS = ("<start_of_turn>", "<end_of_turn>")
_CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _cases() -> Iterator[TokenizerCase]:
    yield from _byte_level_cases()
    yield from _sentencepiece_cases()
    yield from _flag_cases()
    yield from _other_cases()


def _byte_level_cases() -> Iterator[TokenizerCase]:
    def case(name: str, build: Callable[[], Tokenizer], template: str = CHATML, **said: str) -> TokenizerCase:
        return TokenizerCase(name, build, template, said or _ENDS)

    yield case("gpt2", lambda: _byte_level(use_regex=True, trim_offsets=False))
    yield case("gpt2-trimmed-offsets", lambda: _byte_level(use_regex=True, trim_offsets=True))
    yield case("roberta-prefix-space", lambda: _byte_level(use_regex=True, prefix_space=True, trim_offsets=True))
    yield case("smollm-digits", lambda: _byte_level(_digits(individual=True), use_regex=True))
    yield case("falcon-digits-three", lambda: _byte_level(pre_tokenizers.Punctuation("contiguous"), _split("[0-9]{3}")))
    yield case("starcoder-digits-together", lambda: _byte_level(_digits(individual=False), use_regex=True))
    yield case("qwen2", lambda: _byte_level(_split(QWEN2_SPLIT), normalizer=normalizers.NFC()))
    yield case("qwen3-thinking", lambda: _byte_level(_split(QWEN2_SPLIT), normalizer=normalizers.NFC()), THINKING)
    yield case("alpaca-no-specials", lambda: _byte_level(_split(QWEN2_SPLIT)), ALPACA)
    yield case("phi4-o200k", lambda: _byte_level(_split(O200K_SPLIT)))
    yield case("nfkc", lambda: _byte_level(use_regex=True, normalizer=normalizers.NFKC()))
    yield case("lowercase", lambda: _byte_level(use_regex=True, normalizer=normalizers.Lowercase()))
    yield case("no-split", lambda: _byte_level())
    llama3 = functools.partial(_byte_level, _split(LLAMA3_SPLIT), specials=_LLAMA3_TOKENS)
    yield case("llama3", lambda: llama3(ignore_merges=True), LLAMA3, **_LLAMA3)
    yield case("llama3-with-merges", lambda: llama3(ignore_merges=False), LLAMA3, **_LLAMA3)
    deepseek = (_split(r"\p{N}{1,3}"), _split("[一-龥぀-ゟ゠-ヿ]+"), _split(GPT2_SPLIT))
    yield case(
        "deepseek-v3",
        lambda: _byte_level(*deepseek, specials=_DEEPSEEK_TOKENS),
        DEEPSEEK,
        **_DEEPSEEK,
    )
    yield case(
        "deepseek-llm",
        lambda: _byte_level(
            _split("[\r\n]"), _split(r"\s?\p{L}+"), _digits(individual=True), specials=_DEEPSEEK_TOKENS
        ),
        DEEPSEEK,
        **_DEEPSEEK,
    )


def _sentencepiece_cases() -> Iterator[TokenizerCase]:
    def case(name: str, build: Callable[[], Tokenizer], template: str, **said: str) -> TokenizerCase:
        return TokenizerCase(name, build, template, said or _PIECES)

    spaces = normalizers.Replace(" ", "▁")
    yield case("llama2-legacy", lambda: _sentencepiece(_legacy()), LLAMA2)
    yield case("llama2-first", lambda: _sentencepiece(None, _metaspace("first")), LLAMA2)
    yield case("vicuna-legacy", lambda: _sentencepiece(_legacy()), VICUNA)
    yield case("vicuna-first", lambda: _sentencepiece(None, _metaspace("first")), VICUNA)
    yield case("vicuna-always", lambda: _sentencepiece(None, _metaspace("always")), VICUNA)
    yield case("tinyllama-first", lambda: _sentencepiece(None, _metaspace("first")), ZEPHYR)
    yield case("zephyr-legacy", lambda: _sentencepiece(_legacy()), ZEPHYR)
    yield case("mistral-never", lambda: _sentencepiece(None, _metaspace("never"), strips=False), LLAMA2)
    yield case("mistral-split", lambda: _sentencepiece(None, _metaspace("first", split=True)), LLAMA2)
    yield case("gemma", lambda: _sentencepiece(spaces, specials=_TURNS, strips=False), GEMMA, **_GEMMA)
    yield case(
        "gemma3-split",
        lambda: _sentencepiece(
            spaces, pre_tokenizers.Split(" ", "merged_with_previous"), specials=_TURNS, strips=False
        ),
        GEMMA,
        **_GEMMA,
    )
    yield case("alpaca-legacy", lambda: _sentencepiece(_legacy()), ALPACA)
    yield case("no-byte-fallback", lambda: _sentencepiece(_legacy(), byte_fallback=False), ZEPHYR)


def _flag_cases() -> Iterator[TokenizerCase]:
    def chatml(name: str, tokens: tuple[AddedToken, ...]) -> TokenizerCase:
        build = lambda: _byte_level(use_regex=True, specials=("<|endoftext|>", *tokens))  # noqa: E731
        return TokenizerCase(name, build, CHATML, _ENDS)

    names = ("<|im_start|>", "<|im_end|>")
    yield TokenizerCase("phi3-rstrip", lambda: _sentencepiece(_legacy(), specials=_PHI3_TOKENS), PHI3, _PIECES)
    yield TokenizerCase(
        "phi3-rstrip-first", lambda: _sentencepiece(None, _metaspace("first"), specials=_PHI3_TOKENS), PHI3, _PIECES
    )
    yield chatml("special-lstrip", _flagged(*names, lstrip=True))
    yield chatml("special-rstrip", _flagged(*names, rstrip=True))
    yield chatml("special-single-word", _flagged(*names, single_word=True))
    yield chatml("special-normalized", _flagged(*names, normalized=True))
    yield chatml("added-not-special", (*_flagged(*names), *_flagged("items", "return", special=False)))


def _other_cases() -> Iterator[TokenizerCase]:
    t5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    tokens = ("<|im_start|>", "<|im_end|>")
    nfkc = normalizers.NFKC()
    yield TokenizerCase("t5-unigram", lambda: _unigram(nfkc, "always", tokens), CHATML, t5)
    yield TokenizerCase("unigram-never", lambda: _unigram(normalizers.NFC(), "never", tokens), CHATML, t5)
    bert = {"unk_token": "[UNK]", "eos_token": "<|im_end|>"}
    yield TokenizerCase("word-piece", lambda: _word_piece(lowercase=False), CHATML, bert)


CASES = tuple(_cases())
