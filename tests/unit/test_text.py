import json
import random
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from orchestrator.sessions.text import Codec, Detokenizer, Message, NoChatTemplateError, StopMatcher
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files

FILES = load_tokenizer_files(str(embedded_directory("target"))).files
CLOCK = datetime(2026, 11, 22, tzinfo=UTC)
TEMPLATE = FILES["chat_template.jinja"].decode()


def codec(template: str | None = TEMPLATE) -> Codec:
    return Codec(FILES["tokenizer.json"], json.loads(FILES["tokenizer_config.json"]), template)


# Templates in the wild: Llama 3's trimming and header, Mistral's alternation check, a date, a tojson.
TEMPLATES = [
    TEMPLATE,
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}<|{{ m.role }}|>\n{{ m.content | trim }}"
    "{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "{%- for m in messages %}\n  {%- if m.role == 'user' %}\n[INST] {{ m.content }} [/INST]\n  {%- else %}\n"
    " {{ m.content | tojson }}\n  {%- endif %}\n{%- endfor %}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_rendering_equals_transformers(template: str) -> None:
    oracle = PreTrainedTokenizerFast.from_pretrained(embedded_directory("target"), bos_token="<|endoftext|>")
    messages = [Message("user", " What is é? "), Message("assistant", 'A <letter> & "more"'), Message("user", "And?")]
    files = load_tokenizer_files(str(embedded_directory("target"))).files
    special = json.loads(files["tokenizer_config.json"]) | {"bos_token": "<|endoftext|>"}
    ours = Codec(files["tokenizer.json"], special, template)
    expected = oracle.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        chat_template=template,
        tokenize=False,
        add_generation_prompt=True,
    )
    assert ours.render(messages, CLOCK) == expected


def test_a_template_that_refuses_says_why() -> None:
    strict = codec("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidFieldsError, match="the chat template refuses them: roles must alternate"):
        strict.render([Message("user", "a")], CLOCK)


def test_a_model_without_a_template_points_to_generate() -> None:
    with pytest.raises(NoChatTemplateError, match="use Generate"):
        codec(None).render([Message("user", "a")], CLOCK)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4095), max_size=60))
def test_detokenized_pieces_join_to_the_whole_decoding(tokens: list[int]) -> None:
    shared = codec()
    detokenizer = Detokenizer(shared, ())
    pieces = [detokenizer.push(token)[0] for token in tokens]
    assert "".join(pieces) + detokenizer.flush() == shared.decode(tokens)


def test_a_character_of_several_tokens_comes_out_whole() -> None:
    shared = codec()
    tokens = shared.encode_rendered("naïve 🜲")
    detokenizer = Detokenizer(shared, ())
    pieces = [detokenizer.push(token)[0] for token in tokens]
    assert "".join(pieces) == "naïve 🜲"
    assert "�" not in "".join(pieces)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_stop_matcher_equals_a_search_in_the_whole_text(text: str, stops: list[str], seed: int) -> None:
    rng = random.Random(seed)
    matcher = StopMatcher(stops)
    got, stopped, at = "", False, 0
    while at < len(text) and not stopped:
        size = rng.randint(1, 4)
        piece, stopped = matcher.push(text[at : at + size])
        got += piece
        at += size
        assert text.startswith(got)
    if not stopped:
        got += matcher.flush()
    seen = text[:at]
    found = [seen.find(stop) for stop in stops if stop in seen]
    assert stopped == bool(found)
    assert got == (seen[: min(found)] if found else text)
