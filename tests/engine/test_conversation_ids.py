"""A conversation's ids are those of transformers' apply_chat_template, over three turns, for forty
tokenizers."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.messages import Message, from_user
from orchestrator.sessions.conversation.next_prompt import next_prompt
from orchestrator.sessions.conversation.session import Session, common_prefix_length
from orchestrator.sessions.conversation.turn_limits import PastTurn, TurnLimits
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from slipstream.sampling.rule import Acceptance, SamplingRule
from tests.tokenizer_models import ANSWERS, CASES, QUESTIONS, TokenizerCase

CLOCK = datetime(2026, 11, 22, tzinfo=UTC)


def _by_transformers(tokenizer: Any, messages: list[Message]) -> list[int]:
    conversation = [{"role": message.role, "content": message.content} for message in messages]
    ids: list[int] = tokenizer.apply_chat_template(conversation, add_generation_prompt=True)["input_ids"]
    return ids


def _generated(codec: Codec, messages: list[Message], answer: str) -> list[int]:
    """An answer as the model gives it that knows the template: in the tokens of its text there, up
    to an end token."""
    prompt = codec.render(messages, CLOCK)
    rendered = codec.render([*messages, Message("assistant", answer), Message("user", "x")], CLOCK)
    whole = codec.encode_with_places(rendered)
    begin = whole.border(len(prompt))
    if not rendered.startswith(prompt) or begin is None:  # what stands there is not what a model could give
        return codec.encode_rendered(answer)
    end = whole.text.index(answer.strip(), len(prompt)) + len(answer.strip())
    special = _special(codec)
    stop = next(index for index, start in enumerate(whole.starts) if start >= end)
    return whole.ids[begin : stop + 1 if whole.ids[stop] in special else stop]


def _special(codec: Codec) -> set[int]:
    added = codec.tokenizer.get_added_tokens_decoder()
    return {index for index, token in added.items() if token.special and token.content != "<unk>"}


def _say(session: Session, prompt: list[int], content: str, tokens: list[int]) -> None:
    rule = SamplingRule(end_token_ids=tuple(_special(session.codec)))
    turn = session.begin_turn(prompt, rule, TurnLimits(len(tokens), 100_000), from_user(content))
    turn.commit(tokens)
    session.end_turn()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_three_turns_have_the_ids_of_transformers(case: TokenizerCase, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(case.write(tmp_path))
    session = Session("s", Codec.from_files(load_tokenizer_files(str(tmp_path)).files), CLOCK)
    for question, answer in zip(QUESTIONS, ANSWERS, strict=True):
        messages = [*session.messages, Message("user", question)]
        prompt = next_prompt(session, from_user(question)).tokens()
        expected = _by_transformers(tokenizer, messages)
        assert prompt == expected, _difference(session.codec, prompt, expected)
        _say(session, prompt, question, _generated(session.codec, messages, answer))
        assert session.messages[-1].content


def _difference(codec: Codec, ids: list[int], expected: list[int]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b), min(len(ids), len(expected)))
    near = slice(max(0, at - 3), at + 6)
    ours, theirs = ([codec.tokenizer.id_to_token(token) for token in each[near]] for each in (ids, expected))
    return f"from token {at}: {ours} in place of {theirs}"


def _session(name: str, directory: Path) -> Session:
    case = next(case for case in CASES if case.name == name)
    return Session("s", Codec.from_files(load_tokenizer_files(str(case.write(directory))).files), CLOCK)


def _ids(codec: Codec, *names: str) -> list[int]:
    found = [codec.tokenizer.token_to_id(name) for name in names]
    return [token for token in found if token is not None]


@pytest.mark.parametrize(
    ("name", "end_token", "lost"),
    [
        ("gpt2", "<|im_end|>", 0),
        ("llama2-legacy", "</s>", 1),  # the template writes a space before it
        ("vicuna-first", "</s>", 0),
        ("phi3-rstrip", "<|end|>", 0),
        ("gemma", "<end_of_turn>", 0),
        ("llama3", "<|eot_id|>", 0),
    ],
)
def test_generated_tokens_stay_though_their_text_has_other_ids(
    name: str, end_token: str, lost: int, tmp_path: Path
) -> None:
    """The model spells "The end" letter by letter, as no tokenizer does."""
    session = _session(name, tmp_path)
    codec = session.codec
    space = "Ġ" if codec.tokenizer.token_to_id("Ġ") is not None else "▁"
    begins_with_space = name in ("llama2-legacy", "vicuna-first")
    spelt = _ids(codec, *([space] if begins_with_space else []), *"The", space, *"end")
    [end] = _ids(codec, end_token)
    for turn in range(3):
        prompt = next_prompt(session, from_user("hello")).tokens()
        kept = common_prefix_length(session.tokens, prompt)
        assert len(session.tokens) - kept == (lost if turn else 0)
        session.begin_turn(prompt, SamplingRule(end_token_ids=(end,)), TurnLimits(100, 10_000), from_user("hello"))
        assert session.answer is not None
        session.answer.commit([*spelt, end])
        session.end_turn()
    assert session.messages[-1].content == "The end"


def test_a_template_that_rewrites_an_answer_keeps_the_tokens_of_the_others(tmp_path: Path) -> None:
    """The template drops what stands before "items" of each answer, as templates drop what a model
    has thought."""
    session = _session("qwen3-thinking", tmp_path)
    spelt = session.codec.encode_rendered("T") + session.codec.encode_rendered("he end")
    end = _ids(session.codec, "<|im_end|>")
    for content, tokens in (
        ("one", spelt),
        ("two", session.codec.encode_rendered("thought items done")),
        ("three", spelt),
    ):
        _say(session, next_prompt(session, from_user(content)).tokens(), content, [*tokens, *end])
    prompt = next_prompt(session, from_user("four")).tokens()
    text = session.codec.tokenizer.decode(prompt, skip_special_tokens=False)
    assert "thought" not in text and "assistant\n done<|im_end|>" in text
    joined = ",".join(map(str, prompt))
    assert joined.count(",".join(map(str, [*spelt, *end]))) == 2


def test_what_a_stop_string_cut_off_is_not_in_the_next_prompt(tmp_path: Path) -> None:
    session = _session("qwen2", tmp_path)
    prompt = next_prompt(session, from_user("hello")).tokens()
    turn = session.begin_turn(prompt, SamplingRule(), TurnLimits(100, 10_000, ("STOP",)), from_user("hello"))
    turn.commit(session.codec.encode_rendered("The end STOP"))
    session.end_turn()
    text = session.codec.tokenizer.decode(next_prompt(session, from_user("more")).tokens(), skip_special_tokens=False)
    assert "assistant\nThe end <|im_end|>" in text and "STOP" not in text


def test_an_answer_whose_end_the_template_trims_loses_only_what_is_trimmed(tmp_path: Path) -> None:
    session = _session("llama3", tmp_path)
    words, lines = session.codec.encode_rendered("The end"), session.codec.encode_rendered("\n\n")
    _say(session, next_prompt(session, from_user("one")).tokens(), "one", [*words, *lines])
    before = list(session.tokens)
    prompt = next_prompt(session, from_user("two")).tokens()
    assert session.messages[-1].content == "The end\n\n"
    assert common_prefix_length(before, prompt) == len(before) - len(lines)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_any_generated_text_is_rendered_as_by_the_template_and_after_a_restore(
    case: TokenizerCase, tmp_path: Path
) -> None:
    """Answers of random tokens: half characters, special tokens, spaces at either end."""
    session = Session("s", Codec.from_files(load_tokenizer_files(str(case.write(tmp_path))).files), CLOCK)
    restored = Session("s", session.codec, CLOCK)
    chance = random.Random(case.name)
    count = session.codec.tokenizer.get_vocab_size()
    for question in (*QUESTIONS, *QUESTIONS):
        prompt = next_prompt(session, from_user(question)).tokens()
        assert next_prompt(restored, from_user(question)).tokens() == prompt
        shared = common_prefix_length(session.tokens, prompt)
        rendered = session.codec.render([*session.messages, Message("user", question)], CLOCK)
        if case.name in EXACT:
            assert session.codec.text_with_special_tokens(prompt) == rendered
        tokens = [chance.randrange(count) for _ in range(chance.randint(1, 12))]
        _say(session, prompt, question, tokens)
        said, text = session.answers[-1], session.messages[-1].content
        assert said is not None
        past = PastTurn(
            shared,
            prompt[shared:],
            from_user(question),
            said.tokens,
            text,
            Acceptance.COUPLED,
            said.ended_with_end_token,
            is_private=False,
        )
        restored.replay_turn(past)


EXACT = ("gpt2", "smollm-digits", "phi4-o200k", "no-split", "alpaca-no-specials")
"""Whose decoding gives the text back that was encoded."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_text_that_is_cut_before_a_special_token_has_the_same_ids(case: TokenizerCase, tmp_path: Path) -> None:
    codec = Codec.from_files(load_tokenizer_files(str(case.write(tmp_path))).files)
    chance = random.Random(case.name)
    added = [token.content for token in codec.tokenizer.get_added_tokens_decoder().values()]
    parts = [*added, " ", "\n", "  ", "é", "12", "<|", "|>", *" ".join(QUESTIONS).split(" ")]
    for _ in range(60):
        text = "".join(chance.choice(parts) for _ in range(chance.randint(2, 30)))
        whole, at = codec.encode_with_places(text), chance.randint(0, len(text))
        ids = [token for token, end in zip(whole.ids, whole.ends, strict=True) if end <= at]
        cut = codec.cut_before(text, at, ids)
        border = whole.border(cut)
        assert cut <= at and border is not None
        tail = codec.encode_with_places(text, cut)
        assert (tail.ids, tail.starts, tail.ends) == (whole.ids[border:], whole.starts[border:], whole.ends[border:])


def test_a_token_that_another_reaches_into_is_no_place_to_cut(tmp_path: Path) -> None:
    directory = CASES[0].write(tmp_path)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens(["x<|im_", "<|fine|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    codec = Codec.from_files(load_tokenizer_files(str(directory)).files)
    [start, fine] = _ids(codec, "<|im_start|>", "<|fine|>")
    assert codec.cut_before("a<|im_start|>b", 14, [start]) == 0
    assert codec.cut_before("a<|fine|>b", 10, [fine]) == 1


def test_an_answer_is_found_where_the_template_writes_it_and_not_in_the_header_before(tmp_path: Path) -> None:
    """The header has the answer's text, and the ids that a tokenizer gives it. The model has spelt
    its answer."""
    directory = CASES[0].write(tmp_path)
    (directory / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ 'Question' if m.role == 'user' else 'answer' }}:\n{{ m.content | trim }}\n{% endfor %}"
        "{% if add_generation_prompt %}now answer:{% endif %}"  # so no prompt begins with the one before it
    )
    session = Session("s", Codec.from_files(load_tokenizer_files(str(directory)).files), CLOCK)
    spelt = _ids(session.codec, *"answer")
    _say(session, next_prompt(session, from_user("one")).tokens(), "one", spelt)
    rendered = session.codec.render([*session.messages, Message("user", "two")], CLOCK)
    prompt = next_prompt(session, from_user("two")).tokens()
    whole = session.codec.encode_with_places(rendered)
    at = whole.border(rendered.index("answer:\nanswer") + len("answer:\n"))
    assert at is not None
    assert prompt[: len(whole.ids[:at])] == whole.ids[:at]
    assert prompt[at : at + len(spelt)] == spelt
