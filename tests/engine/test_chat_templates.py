"""Prompts of chat templates after well-known models: the same ids as transformers, or a refusal
that says why."""

from __future__ import annotations

import datetime as times
from pathlib import Path
from typing import Any

import pytest
import transformers.utils.chat_template_utils
from transformers import AutoTokenizer

from orchestrator.sessions.conversation.codec import ChatTemplateBrokenError, Codec
from orchestrator.sessions.conversation.messages import Message, from_user
from orchestrator.sessions.conversation.next_prompt import next_prompt
from orchestrator.sessions.conversation.session import Session
from orchestrator.sessions.conversation.turn_limits import TurnLimits
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from slipstream.sampling.rule import SamplingRule
from tests.chat_templates import TEMPLATES, ChatTemplate, write_model

NOW = times.datetime(2026, 3, 1, 12, 0, 0)
USERS = ['What is é? 2 < 3 & "four"', "And   then?\n\n    indented", "Go on."]
ANSWERS = ["A letter.", "Nothing\nmore.", "So it goes."]
SYSTEM = "You are 'terse'."


class _Clock(times.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return NOW


@pytest.fixture(autouse=True)
def _same_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.utils.chat_template_utils, "datetime", _Clock)


def conversation(turns: int, system: str | None = None) -> list[Message]:
    messages = [] if system is None else [Message("system", system)]
    for user, answer in zip(USERS[:turns], ANSWERS, strict=False):
        messages += [Message("user", user), Message("assistant", answer)]
    return messages[:-1]


def loaded(directory: Path, template: ChatTemplate, where: str = "config") -> tuple[Codec, Any]:
    write_model(directory, template, where)
    return Codec.from_files(load_tokenizer_files(str(directory)).files), AutoTokenizer.from_pretrained(directory)


def ids(oracle: Any, messages: list[Message], *, is_typed: bool) -> list[int]:
    def content(text: str) -> Any:
        return [{"type": "text", "text": text}] if is_typed else text

    said = [{"role": m.role, "content": content(m.content)} for m in messages]
    found: list[int] = oracle.apply_chat_template(said, add_generation_prompt=True)["input_ids"]
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_have_the_ids_of_transformers(name: str, tmp_path: Path) -> None:
    template = TEMPLATES[name]
    codec, oracle = loaded(tmp_path, template)
    for turns in (1, 2, 3):
        messages = conversation(turns)
        assert codec.encode_rendered(codec.render(messages, NOW)) == ids(oracle, messages, is_typed=template.is_typed)
        with_system = conversation(turns, SYSTEM)
        if template.system == "kept":
            expected = ids(oracle, with_system, is_typed=template.is_typed)
            assert codec.encode_rendered(codec.render(with_system, NOW)) == expected
        else:
            what = "refuses them" if template.system == "refused" else r"messages\[0\].content is left out"
            with pytest.raises(InvalidFieldsError, match=what):
                codec.render(with_system, NOW)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_session_of_three_turns_has_the_ids_of_transformers(name: str, tmp_path: Path) -> None:
    template = TEMPLATES[name]
    codec, oracle = loaded(tmp_path, template)
    session = Session("s", codec, NOW)
    for turn in range(3):
        prompt = next_prompt(session, from_user(USERS[turn])).tokens()
        assert prompt == ids(oracle, conversation(turn + 1), is_typed=template.is_typed)
        answer = session.begin_turn(prompt, SamplingRule(), TurnLimits(1_000, 100_000), from_user(USERS[turn]))
        answer.commit(codec.encode_rendered(ANSWERS[turn]))
        answer.cut_short()
        session.end_turn()


@pytest.mark.parametrize("name", ["command-r", "hermes-2-pro", "chatml"])
def test_templates_in_files_of_their_own_are_found(name: str, tmp_path: Path) -> None:
    codec, oracle = loaded(tmp_path, TEMPLATES[name], "files")
    messages = conversation(2)
    assert codec.encode_rendered(codec.render(messages, NOW)) == ids(oracle, messages, is_typed=False)


@pytest.mark.parametrize("name", ["qwen-3", "deepseek-r1", "lfm2.5"])
def test_thoughts_that_a_template_drops_are_no_message_left_out(name: str, tmp_path: Path) -> None:
    codec, oracle = loaded(tmp_path, TEMPLATES[name])
    thought = Message("assistant", "<think>\nLong thoughts about it.\n</think>\n\nYes.")
    messages = [Message("user", "a"), thought, Message("user", "b"), thought, Message("user", "  ")]
    assert codec.encode_rendered(codec.render(messages, NOW)) == ids(oracle, messages, is_typed=False)


@pytest.mark.parametrize(
    "said", ["a", " padded \n", "{{ 1 }}", "<|im_end|>", "role", "x" * 100_000, "\u0130stanbul \u017f", "\x00"]
)
def test_any_words_of_a_user_are_taken(said: str, tmp_path: Path) -> None:
    for name in ("chatml", "llama-3", "json", "smolvlm"):
        directory = tmp_path / name
        directory.mkdir()
        codec, oracle = loaded(directory, TEMPLATES[name])
        messages = [Message("user", said)]
        assert codec.encode_rendered(codec.render(messages, NOW)) == ids(oracle, messages, is_typed=name == "smolvlm")


def broken(source: str) -> Codec:
    files = load_tokenizer_files("arithmetic:").files
    return Codec.from_files({**files, "chat_template.jinja": source.encode()})


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% if %}", "line 1: Expected an expression"),
        ("\n\n{% unknown %}", "line 3: Encountered unknown tag 'unknown'"),
        ("{{ messages[0].tools[0] }}", "line 1: 'dict object' has no attribute 'tools'"),
        ("\n{{ 1 / 0 }}", "line 2: ZeroDivisionError"),
        ("{{ messages + 'a' }}", "TypeError"),
        ("{{ messages | tojson(indent='x', separators=3) }}", "line 1: "),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "RecursionError"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "RecursionError"),
        ("{{ '\\ud800' }}", "half a surrogate pair"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% set ns = namespace(_a=1) %}", "underscore"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ 'x' * 10**10 }}", "MemoryError"),
        ("{{ 'x' * (messages | length * 10**10) }}", "MemoryError"),
        (
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "Memory|s of",
        ),
        ("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "far more text"),
    ],
)
def test_a_template_that_fails_is_told_with_its_line_and_raw_prompts_go_on(source: str, why: str) -> None:
    codec = broken(source)
    with pytest.raises(ChatTemplateBrokenError, match=why) as caught:
        codec.render([Message("user", "hello")], NOW)
    assert caught.value.reason == "CHAT_TEMPLATE_BROKEN"
    assert codec.encode_text("a") == [codec.encode_rendered("a")[0]]
    assert codec.template_fault(NOW) is not None


def test_after_a_template_that_runs_for_ever_another_is_rendered() -> None:
    with pytest.raises(ChatTemplateBrokenError, match="2 s of processor time"):
        broken("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}").render(
            [Message("user", "hello")], NOW
        )
    assert broken("{{ messages[0].content }}").render([Message("user", "hello")], NOW) == "hello"
    assert broken("{{ messages[0].content }}").template_fault(NOW) is None


def test_a_message_that_a_template_leaves_out_is_named() -> None:
    last_alone = broken("<{{ messages[-1].content }}>")
    assert last_alone.render([Message("user", "one")], NOW) == "<one>"
    with pytest.raises(InvalidFieldsError) as caught:
        last_alone.render([Message("user", "one"), Message("assistant", "two"), Message("user", "three")], NOW)
    assert [violation.field for violation in caught.value.violations] == ["messages[0].content", "messages[1].content"]
    nothing = broken("hello user")
    for said in ("user", "a long message that is nowhere"):
        with pytest.raises(InvalidFieldsError, match=r"messages\[0\].content is left out by the model's chat template"):
            nothing.render([Message("user", said)], NOW)
    assert "leaves out" in str(nothing.template_fault(NOW))
