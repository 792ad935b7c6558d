import itertools
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from orchestrator.sessions.conversation.codec import Codec, NoChatTemplateError
from orchestrator.sessions.conversation.detokenizer import Detokenizer, StopMatcher
from orchestrator.sessions.conversation.messages import Message
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from tests.chat_templates import byte_tokenizer

FILES = load_tokenizer_files(str(embedded_directory("target"))).files
CLOCK = datetime(2026, 11, 22, tzinfo=UTC)
TEMPLATE = FILES["chat_template.jinja"].decode()


def codec(template: str | None = TEMPLATE) -> Codec:
    return Codec(FILES["tokenizer.json"], json.loads(FILES["tokenizer_config.json"]), template)


# Templates in the wild: Llama 3's trimming and header, Mistral's alternation check, a date, a
# tojson.
TEMPLATES = [
    TEMPLATE,
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}<|{{ m.role }}|>\n{{ m.content | trim }}"
    "{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "{%- for m in messages %}\n  {%- if m.role == 'user' %}\n[INST] {{ m.content }} [/INST]\n  {%- else %}\n"
    " {{ m.content | tojson }}\n  {%- endif %}\n{%- endfor %}",
    "{% for m in messages %}\n    {% if loop.index == 4 %}\n        {% break %}\n    {% endif %}\n"
    "    {{ m | tojson(indent=2) }}\n{% endfor %}\n",
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


def test_a_codec_is_made_of_the_files_that_a_verifier_hands_out() -> None:
    messages = [Message("user", "What is é?")]
    assert Codec.from_files(FILES).render(messages, CLOCK) == codec().render(messages, CLOCK)
    template = b"{{ bos_token }}{{ messages[0].content }}"
    special = {"tokenizer_config.json": b'{"bos_token": "<s>"}', "chat_template.jinja": template}
    assert Codec.from_files({**FILES, **special}).render(messages, CLOCK) == "<s>What is é?"
    bare = {name: content for name, content in FILES.items() if name != "chat_template.jinja"}
    assert Codec.from_files(bare).encode_rendered("hello") == codec().encode_rendered("hello")
    with pytest.raises(NoChatTemplateError):
        Codec.from_files(bare).render(messages, CLOCK)


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


def byte_fallback() -> Codec:
    """As Llama 2 and Gemma spell what their vocabulary lacks: a token for each byte of it."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁the", "é"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    return Codec(tokenizer.to_str().encode(), {}, None)


THE, E_ACUTE = 257, 258


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["A", "é", "€", "🜲", " the", "é as one token"]), max_size=8))
def test_characters_spelt_byte_by_byte_come_out_whole(parts: list[str]) -> None:
    """A byte is decoded together with those before it: what it begins takes back what was decoded,
    until it is whole."""
    tokens: list[int] = []
    for part in parts:
        whole = {" the": THE, "é as one token": E_ACUTE}.get(part)
        tokens += [1 + byte for byte in part.encode()] if whole is None else [whole]
    detokenizer = Detokenizer(byte_fallback(), ())
    pieces = [detokenizer.push(token)[0] for token in tokens]
    assert "".join(pieces) + detokenizer.flush() == "".join(part.removesuffix(" as one token") for part in parts)


def test_after_bytes_that_are_no_character_the_text_goes_on() -> None:
    detokenizer = Detokenizer(byte_fallback(), ())
    pieces = [detokenizer.push(token)[0] for token in (1 + ord("A"), 1 + 0xFF, THE, 1 + ord("B"))]
    assert pieces == ["A", "", "\ufffd the", "B"]
    assert detokenizer.flush() == "", "the whole decodes otherwise, and what was said is not said again"
    cut = Detokenizer(byte_fallback(), ())
    pieces = [cut.push(1 + byte)[0] for byte in "€".encode() + b"\xff\xe2"]
    assert ("".join(pieces), cut.flush()) == ("€", "\ufffd\ufffd"), "what never became a character is not lost"
    shared = byte_fallback()
    shared.tokenizer.add_special_tokens(["<end>"])
    detokenizer = Detokenizer(shared, ())
    tokens = (1 + ord("A"), 1 + 0xFF, THE, shared.tokenizer.token_to_id("<end>"), THE)
    assert "<end>" not in "".join(detokenizer.push(token)[0] for token in tokens)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(0xC0, 0xFF), st.integers(0x80, 0xBF), st.just(ord("A")), st.none()), max_size=12))
def test_no_word_between_arbitrary_bytes_is_lost(parts: list[int | None]) -> None:
    detokenizer = Detokenizer(byte_fallback(), ())
    text = "".join(detokenizer.push(THE if byte is None else 1 + byte)[0] for byte in parts) + detokenizer.flush()
    runs = text.split(" the")
    assert len(runs) == 1 + parts.count(None)
    at = [-1, *(index for index, part in enumerate(parts) if part is None), len(parts)]
    assert [bool(run) for run in runs] == [after - before > 1 for before, after in itertools.pairwise(at)]


def test_a_character_that_never_became_whole_comes_last_and_may_be_a_stop_string() -> None:
    shared = codec()
    tokens = shared.encode_rendered("no 🜲")[:-1]
    plain, stopped = Detokenizer(shared, ()), Detokenizer(shared, ("o �",))
    text = ["".join(detokenizer.push(token)[0] for token in tokens) for detokenizer in (plain, stopped)]
    assert text[0] + plain.flush() == "no �"
    assert text[1] + stopped.flush() == "n"


def test_only_what_may_be_the_start_of_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(("aab", "cc"))
    assert [matcher.push(piece) for piece in ("xa", "a", "a", "c", "x")] == [
        ("x", False),
        ("", False),
        ("a", False),
        ("aa", False),
        ("cx", False),
    ]
    assert matcher.push("yc") == ("y", False)
    assert (matcher.flush(), matcher.flush()) == ("c", "")
    assert StopMatcher(()).push("any") == ("any", False)


@pytest.mark.parametrize(
    ("stops", "before", "through"),
    [
        (("cd", "ab"), "xx", "xxab"),
        (("abc", "ab"), "xx", "xxab"),
        (("ab", "xabcd"), "x", "xxabcd"),
        (("d", "cd"), "xxab", "xxabcd"),
    ],
)
def test_of_several_stop_strings_in_one_piece_the_first_and_shortest_ends_the_text(
    stops: tuple[str, ...], before: str, through: str
) -> None:
    assert StopMatcher(stops).push("xxabcde") == (before, True)
    assert StopMatcher(stops, include=True).push("xxabcde") == (through, True)


def test_a_decoding_ends_with_or_before_its_stop_string() -> None:
    shared = codec()
    tokens = shared.encode_rendered("one two three four")
    for include, expected in ((True, "one two th"), (False, "one ")):
        detokenizer, text, stopped = Detokenizer(shared, ("zzz", "two th"), include_stop=include), "", False
        for token in tokens:
            if not stopped:
                piece, stopped = detokenizer.push(token)
                text += piece
        assert (text, stopped, detokenizer.stop_string) == (expected, True, "two th")


def test_special_tokens_are_in_rendered_text_and_not_in_what_is_read() -> None:
    shared = codec()
    tokens = shared.encode_rendered("<|im_start|>hello<|im_end|>")
    assert len(tokens) == len(shared.encode_rendered("hello")) + 2
    assert shared.decode(tokens) == "hello"
    assert (shared.token_text(tokens[0]), shared.token_text(tokens[-1])) == ("<|im_start|>", "<|im_end|>")


def test_a_tokenizers_own_special_tokens_are_for_raw_text_alone() -> None:
    tokenizer = Tokenizer.from_buffer(FILES["tokenizer.json"])
    tokenizer.post_processor = processors.TemplateProcessing("<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    shared = Codec(tokenizer.to_str().encode(), {}, None)
    assert shared.encode_text("hello") == [0, *shared.encode_rendered("hello")]


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    include=st.booleans(),
)
def test_stop_matcher_equals_a_search_in_the_whole_text(text: str, stops: list[str], seed: int, include: bool) -> None:
    rng = random.Random(seed)
    matcher = StopMatcher(stops, include=include)
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
    found = [(seen.find(stop), len(stop)) for stop in stops if stop in seen]
    assert stopped == bool(found)
    begin, length = min(found, default=(len(text), 0))
    assert got == seen[: begin + length if include else begin]
    assert matcher.found == (seen[begin : begin + length] if found else None)
    assert matcher.flush() == "", "nothing is given twice"


def llama() -> Codec:
    """As Llama 2 spells text: a space before the first word, which the decoder strips."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁yes", "yes", "a", "é", "▁a"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<end>", "<user>"])
    return Codec(tokenizer.to_str().encode(), {}, None)


def bytes_alone() -> Codec:
    return Codec(byte_tokenizer(["<end>", "<user>"]).to_str().encode(), {}, None)


def wordpiece() -> Codec:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "a": 3, "##é": 4}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens(["<end>"])
    return Codec(tokenizer.to_str().encode(), {}, None)


BYTES_THAT_MATTER = [0x41, 0x80, 0x82, 0xAC, 0xC3, 0xA9, 0xE2, 0xF0, 0x9F, 0xFF]


@settings(max_examples=150, deadline=None)
@given(data=st.data(), name=st.sampled_from(["bytes", "embedded", "wordpiece"]))
def test_random_tokens_have_the_text_of_the_whole_decoding(data: st.DataObject, name: str) -> None:
    shared = {"bytes": bytes_alone, "embedded": codec, "wordpiece": wordpiece}[name]()
    size = shared.tokenizer.get_vocab_size()
    few = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=6))
    tokens = data.draw(st.lists(st.sampled_from(few) | st.integers(0, size - 1), max_size=120))
    detokenizer = Detokenizer(shared, ())
    assert "".join(detokenizer.push(token)[0] for token in tokens) + detokenizer.flush() == shared.decode(tokens)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*(1 + byte for byte in BYTES_THAT_MATTER), 258, 262, 263]), min_size=33, max_size=120))
def test_long_runs_of_bytes_that_are_no_characters_lose_no_word(tokens: list[int]) -> None:
    """The run that begins with a bad byte has the text of the whole decoding: a bad character for
    each of its bytes."""
    shared, tokens = llama(), [1 + 0xFF, *tokens]
    detokenizer = Detokenizer(shared, ())
    text = "".join(detokenizer.push(token)[0] for token in tokens) + detokenizer.flush()
    assert text.count(" yes") == shared.decode(tokens).count(" yes")
    run = len(list(itertools.takewhile(lambda token: token <= 1 + 0xFF, tokens)))
    assert text[:run] == shared.decode(tokens)[:run] == "\ufffd" * run


@pytest.mark.parametrize("make", [bytes_alone, llama])
def test_tokens_that_never_make_a_character_are_held_back_for_a_while_alone(make: Callable[[], Codec]) -> None:
    """What is held back is decoded with each token: without a bound 8,000 of them take half a
    minute."""
    shared = make()
    byte = shared.tokenizer.token_to_id("<0xE2>") or shared.tokenizer.token_to_id("â")
    end = shared.tokenizer.token_to_id("<end>")
    for token, text in ((byte, "\ufffd" * 8_000), (end, "")):
        detokenizer = Detokenizer(shared, ())
        longest = 0
        said = []
        for _ in range(8_000):
            said.append(detokenizer.push(token)[0])
            longest = max(longest, detokenizer._stream.open_count)
        assert "".join(said) + detokenizer.flush() == text
        assert longest <= 32


def test_a_stop_string_may_be_or_hold_a_special_token() -> None:
    for make in (llama, bytes_alone):
        shared = make()
        end, user = (shared.tokenizer.token_to_id(name) for name in ("<end>", "<user>"))
        a = shared.context[-1]
        for stops, tokens, before, through in (
            (("<end>",), [a, a, end], "aa", "aa<end>"),
            (("a<user>",), [a, end, a, user], "a", "aa<user>"),
            (("<end>a",), [a, end, a], "a", "a<end>a"),
            (("aa",), [a, end, a], "", "aa"),
            (("<end><user>", "zz"), [a, end, user], "a", "a<end><user>"),
        ):
            for include, expected in ((False, before), (True, through)):
                detokenizer = Detokenizer(shared, stops, include_stop=include)
                pieces = [detokenizer.push(token) for token in tokens]
                assert [stopped for _, stopped in pieces] == [False] * (len(tokens) - 1) + [True]
                assert "".join(text for text, _ in pieces) == expected, (stops, include)
        held = Detokenizer(shared, ("<end>a",))
        assert [held.push(token)[0] for token in (a, end)] == ["a", ""]
        assert held.flush() == ""


def test_a_structures_text_keeps_the_space_that_it_begins_with() -> None:
    shared = llama()
    yes = shared.tokenizer.token_to_id("▁yes")
    plain, exact = Detokenizer(shared, ()), Detokenizer(shared, (), exact=True)
    assert (plain.push(yes)[0], exact.push(yes)[0]) == ("yes", " yes")
    assert (plain.flush(), exact.flush()) == ("", "")
    assert Detokenizer(shared, (), exact=True).flush() == ""
    split = Detokenizer(shared, (), exact=True)
    assert [split.push(1 + byte)[0] for byte in " é".encode()] == [" ", "", "é"]
