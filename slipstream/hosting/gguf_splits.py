"""Splits of text before byte-level BPE, by the name in a GGUF file (``tokenizer.ggml.pre``).

The expressions are those of the models' own tokenizers, as llama.cpp writes them. The first splits
the text, the second splits the pieces of the first, and so on. A match is a piece, and so is the
text between two matches.
"""

from __future__ import annotations

from dataclasses import dataclass

_ENDINGS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
"""Expression that tokenizers' ByteLevel uses by itself."""

_LLAMA3 = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_QWEN2 = rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}"
_QWEN35 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_JAIS2 = (
    rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|\s*[\r\n]+|"
    + "|".join(rf"\s{{{length}}}(?!\S)" for length in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
    + r"|\s{1}"
)


def _cased(letter: str, digits: str, endings: str = "") -> str:
    """Return a split into words that begin with capitals or are all capitals; ``letter`` is a
    character class."""
    upper, lower = rf"((?=[{letter}])([^a-z]))", rf"((?=[{letter}])([^A-Z]))"
    before = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{before}{upper}*{lower}+{endings}|{before}{upper}+{lower}*{endings}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_TEKKEN = _cased(r"\p{L}", r"\p{N}")
_GPT4O = _cased(r"\p{L}", r"\p{N}{1,3}", rf"{_ENDINGS}?")
_GRANITE = _cased(r"\p{L}\p{M}", r"\p{N}{1,3}", rf"{_ENDINGS}?")
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_AND_MORE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASCII_MARK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = (
    rf"{_ASCII_MARK}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_SPARK = (
    rf"{_ASCII_MARK}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"
)
_CASED_LETTERS = (
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531"
    "-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-"
    "\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80"
    "-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-"
    "\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    "[\r\n]",
    rf"\s?[A-Za-z{_CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK_AND_MORE,
    r"\p{N}+",
)
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_AND_MORE, r"\p{N}")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_BAILING = (
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_EXAONE_MOE = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_UFAKZEKA = rf"{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}"
_MINICPM = rf"{_ENDINGS}|{_WORD}|\p{{N}}+|{_MARKS}|{_SPACES}"
_LINES = r"[^\n]+|[\n]+"


@dataclass(frozen=True, slots=True)
class Splits:
    """The expressions of a split, and defaults for what the file leaves out."""

    expressions: tuple[str, ...]
    ignores_merges: bool = False
    """True if a piece that is a token is not split further."""
    adds_bos: bool = False


_OF_LLAMA3 = Splits((_LLAMA3,), ignores_merges=True, adds_bos=True)
_OF_GPT2 = Splits((GPT2,))
_OF_DIGITS = Splits((r"\p{N}", GPT2))
_OF_QWEN2 = Splits((_QWEN2,))
_OF_DEEPSEEK3 = Splits((r"\p{N}{1,3}", _CJK, _DEEPSEEK3))
_OF_GPT4O = Splits((_GPT4O,))
_OF_BLOOM = Splits((_BLOOM,))
_OF_BAILING = Splits((_BAILING,))

SPLITS: dict[str, Splits] = {
    "default": Splits((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "falcon": Splits((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "deepseek-llm": Splits(_DEEPSEEK_LLM),
    "deepseek-coder": Splits(_DEEPSEEK_CODER),
    "spark2_5": Splits((r"\p{N}{1,3}", _CJK, _SPARK, r"\p{N}")),
    "tekken": Splits((_TEKKEN,), ignores_merges=True, adds_bos=True),
    "granite-embed-multi-97m": Splits((_GRANITE,), ignores_merges=True),
    "minicpm5": Splits((r"\p{N}{1,3}", _MINICPM), ignores_merges=True),
    "jais-2": Splits((_JAIS2,)),
    "qwen35": Splits((_QWEN35,)),
    "viking": Splits((_BLOOM, r"\p{N}")),
    "superbpe": Splits((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "seed-coder": Splits((_SEED,)),
    "ufakzeka": Splits((_UFAKZEKA,)),
    "laguna": Splits((_LINES, _QWEN2)),
    "exaone-moe": Splits((_EXAONE_MOE,)),
    "dbrx": Splits((_LLAMA3,)),
    "smaug-bpe": Splits((_LLAMA3,)),
    "glm4": Splits((_LLAMA3,)),
    "chatglm-bpe": Splits((_LLAMA3,)),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        _OF_LLAMA3,
    ),
    **dict.fromkeys(
        (
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
        ),
        _OF_GPT2,
    ),
    **dict.fromkeys(("mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"), _OF_GPT2),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"), _OF_DIGITS
    ),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        _OF_QWEN2,
    ),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _OF_DEEPSEEK3),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _OF_GPT4O),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _OF_BAILING),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _OF_BLOOM),
}
"""Splits by name. Other names that llama.cpp knows are refused: they are not byte-level, or split
text in another way than they say."""
