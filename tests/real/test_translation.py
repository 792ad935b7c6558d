"""Translation between real tokenizers: multilingual text, code and emoji, cut anywhere. The draft's
tokens are those of the whole text, and spell it."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from unicodedata import normalize

import pytest

from draft_service.translation.guesses import translate_guess
from draft_service.translation.spelling import Spelling
from draft_service.translation.translated import Translation
from draft_service.translation.vocabularies import Vocabularies
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from tests.real.texts import TEXTS

PAIRS = [("llama3", "qwen3"), ("qwen3", "llama3"), ("gemma3", "llama3"), ("llama3", "gemma3"), ("qwen3", "llama2")]


@functools.cache
def spelling_of(directory: Path) -> Spelling:
    return Spelling(load_tokenizer_files(str(directory), weights=False))


@pytest.fixture(params=PAIRS, ids=":".join)
def pair(request: pytest.FixtureRequest, tokenizers: Path) -> Vocabularies:
    target, draft = (spelling_of(tokenizers / name) for name in request.param)
    return Vocabularies(target, draft, ())


def plain_texts(pair: Vocabularies) -> list[str]:
    """Texts without special tokens, for which each vocabulary has its own."""
    special = [*pair.target.special_ids, *pair.draft.special_ids]
    return [text[:2000] for text in TEXTS if not any(each in text for each in special)]


def test_committed_text_comes_back_equal(pair: Vocabularies) -> None:
    rng = random.Random(0)
    for text in plain_texts(pair):
        tokens = pair.target.encode(text).tokens
        expected = pair.target.text_bytes(tokens).decode(errors="replace").removeprefix(" ")
        translation = Translation(pair)
        at = 0
        while at < len(tokens):
            count = rng.choice((1, 1, 2, 5, 300))
            translation.add(tokens[at : at + count]) if at else translation.state(0, tokens[:count])
            at += count
        spelt = [*translation.respelling.tokens, *translation.respelling.rest]
        assert translation.respelling.text.endswith(expected)
        back = pair.draft.text_bytes(spelt).decode(errors="replace")
        assert normalize("NFC", back).endswith(normalize("NFC", expected))
        assert spelt == pair.draft.encode(translation.respelling.text).tokens


def test_guesses_are_told_in_the_targets_own_tokens(pair: Vocabularies) -> None:
    """Nearly all: a text is cut anywhere, and a token of the target may reach over the cut."""
    rng = random.Random(1)
    told = right = 0
    for text in (text for text in plain_texts(pair) if len(text) > 40):
        whole = pair.target.encode(text)
        for _ in range(10):
            index = rng.randrange(1, len(whole.tokens))
            cut = whole.starts[index]
            if cut < whole.ends[index - 1]:
                continue
            before = text[max(0, cut - 80) : cut]
            spelt = pair.draft.encode(before + text[cut : cut + 60])
            begin = spelt.index_at(len(before))
            if begin is None:
                continue
            tokens, _ = translate_guess(pair, before, spelt.tokens[begin : begin + 12], [0.5] * 12, 0, ())
            told += len(tokens)
            right += sum(a == b for a, b in zip(tokens, whole.tokens[index:], strict=False))
    assert told > 100
    assert right >= 0.9 * told
