"""SmolLM2's GGUF file: llama.cpp's ids, and transformers' prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from orchestrator.sessions.conversation.codec import Codec
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from tests.gguf_vocabularies import ByLlamaCpp
from tests.real.test_tokenizers import NOW, streamed
from tests.real.texts import CHATS, TEXTS, as_transformers_reads


@pytest.fixture(scope="module")
def codec(smollm2: Path) -> Codec:
    return Codec.from_files(load_tokenizer_files(str(smollm2)).files)


def test_ids_are_llama_cpps_and_pieces_joined_are_the_text(codec: Codec, smollm2: Path) -> None:
    theirs = ByLlamaCpp(smollm2)
    try:
        for text in TEXTS:
            ids = codec.encode_rendered(text)
            assert ids == theirs.tokenize(text, add_special=False), text[:100]
            assert codec.encode_text(text) == theirs.tokenize(text, add_special=True), text[:100]
            assert streamed(codec, ids) == codec.decode(ids)
    finally:
        theirs.close()


@pytest.mark.parametrize("opens_answer", [True, False])
def test_prompts_are_those_of_apply_chat_template(codec: Codec, smollm2: Path, opens_answer: bool) -> None:
    theirs = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    for name, messages in CHATS.items():
        expected = theirs.apply_chat_template(
            as_transformers_reads(messages), add_generation_prompt=opens_answer, tokenize=False
        )
        assert codec.render(messages, NOW, add_generation_prompt=opens_answer) == expected, name
