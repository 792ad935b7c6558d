"""Tools, calls and variables that a chat template reads: the same ids as transformers, or a refusal
that names what the template does not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.messages import Message, TemplateOptions, Tool, ToolCall, from_user
from orchestrator.sessions.conversation.next_prompt import next_prompt
from orchestrator.sessions.conversation.session import Session
from orchestrator.sessions.conversation.turn_limits import TurnLimits
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from slipstream.sampling.rule import SamplingRule
from tests.chat_templates import TEMPLATES, ChatTemplate, write_model
from tests.engine.test_chat_templates import NOW, loaded

WEATHER = '{"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}}'
TOOLS = TemplateOptions((Tool("weather", "Tell the weather of a town.", WEATHER), Tool("now", None, "")))
CALL = ToolCall("call-1", "weather", '{"town": "Ulm é", "days": 2}')
CALLED = [
    Message("user", "And in Ulm?"),
    Message("assistant", "", (CALL, ToolCall("", "now", ""))),
    Message("tool", '{"sky": "clear"}', tool_call_id="call-1"),
    Message("tool", "noon"),
]


DEEPSEEK = ChatTemplate(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.content is none %}"
    "{% for call in m.tool_calls %}{{ call.type + ' ' + call.function.name + ' ' + call.function.arguments + '\n' }}"
    "{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
)
"""As DeepSeek V3's: it reads calls beside a content of None alone, and arguments as JSON text."""


def in_transformers(message: Message) -> dict[str, Any]:
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments or "{}")}}
        for call in message.tool_calls
    ]
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    return {**said, "tool_calls": calls} if calls else said


def in_json_schemas(options: TemplateOptions) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                **({} if tool.description is None else {"description": tool.description}),
                **({"parameters": json.loads(tool.parameters)} if tool.parameters else {}),
            },
        }
        for tool in options.tools
    ]


def served(directory: Path, name: str = "qwen-tools") -> tuple[Codec, Any]:
    write_model(directory, TEMPLATES[name], "config")
    return Codec.from_files(load_tokenizer_files(str(directory)).files), AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("thinks", [True, False])
def test_tools_calls_and_variables_have_the_ids_of_transformers(thinks: bool, tmp_path: Path) -> None:
    codec, oracle = served(tmp_path)
    options = TemplateOptions(TOOLS.tools, json.dumps({"enable_thinking": thinks}))
    rendered = codec.render(CALLED, NOW, options)
    assert "weather" in rendered and '{"town": "Ulm é", "days": 2}' in rendered and "noon" in rendered
    expected = oracle.apply_chat_template(
        [in_transformers(message) for message in CALLED],
        tools=in_json_schemas(options),
        add_generation_prompt=True,
        enable_thinking=thinks,
    )["input_ids"]
    assert codec.encode_rendered(rendered) == expected


def test_a_session_goes_on_with_results_of_tools_and_keeps_its_tokens(tmp_path: Path) -> None:
    codec, _ = served(tmp_path)
    session = Session("s", codec, NOW, "Be brief.", TOOLS)
    prompt = next_prompt(session, from_user("And in Ulm?")).tokens()
    answer = session.begin_turn(prompt, SamplingRule(), TurnLimits(1_000, 100_000), from_user("And in Ulm?"))
    answer.commit(codec.encode_rendered("\n\n<tool_call>\nnow</tool_call>"))
    answer.cut_short()
    session.end_turn()
    results = (Message("tool", "noon"), Message("user", "So?"))
    following = next_prompt(session, results).tokens()
    assert following[: len(session.tokens)] == session.tokens
    rest = codec.text_with_special_tokens(following[len(session.tokens) :])
    assert "noon" in rest and "So?" in rest


def test_a_session_may_begin_with_a_conversation_that_was_held_elsewhere(tmp_path: Path) -> None:
    codec, _ = served(tmp_path)
    session = Session("s", codec, NOW)
    said = (*from_user("one"), Message("assistant", "two"), *from_user("three"))
    prompt = next_prompt(session, said).tokens()
    assert prompt == codec.encode_rendered(codec.render(said, NOW))
    answer = session.begin_turn(prompt, SamplingRule(), TurnLimits(1_000, 100_000), said)
    answer.commit(codec.encode_rendered("four"))
    answer.cut_short()
    session.end_turn()
    assert [message.content for message in session.messages] == ["one", "two", "three", "four"]
    following = next_prompt(session, from_user("five"))
    assert following.tokens()[: len(session.tokens)] == session.tokens
    following.last_rendered = None
    assert following.tokens()[: len(session.tokens)] == session.tokens, "in another process too"


def test_an_undone_turn_takes_the_messages_of_the_assistant_back(tmp_path: Path) -> None:
    codec, _ = served(tmp_path)
    session = Session("s", codec, NOW)
    said = (*from_user("one"), Message("assistant", "two"), *from_user("three"))
    session.begin_turn(next_prompt(session, said).tokens(), SamplingRule(), TurnLimits(1_000, 100_000), said)
    session.end_turn()
    assert not session.messages and not session.answers


@pytest.mark.parametrize(
    ("options", "messages", "field"),
    [
        (TOOLS, from_user("a"), "template_options.tools"),
        (TemplateOptions((), '{"enable_thinking": false}'), from_user("a"), "template_options.variables"),
        (TemplateOptions((), '{"eos_token": "b"}'), from_user("a"), "template_options.variables"),
        (
            TemplateOptions(),
            (*from_user("a"), Message("assistant", "b", (CALL,)), *CALLED[2:3]),
            "messages[1].tool_calls",
        ),
    ],
)
def test_what_the_template_does_not_read_is_refused_by_name(
    options: TemplateOptions, messages: tuple[Message, ...], field: str, tmp_path: Path
) -> None:
    codec, _ = served(tmp_path, "chatml")
    with pytest.raises(InvalidFieldsError) as caught:
        codec.render(messages, NOW, options)
    assert [violation.field for violation in caught.value.violations] == [field]


def test_calls_are_rendered_in_the_form_in_which_the_template_reads_them(tmp_path: Path) -> None:
    codec, _ = loaded(tmp_path, DEEPSEEK)
    assert codec.render(CALLED, NOW) == (
        "<|im_start|>user\nAnd in Ulm?<|im_end|>\n"
        '<|im_start|>assistant\nfunction weather {"town": "Ulm é", "days": 2}\nfunction now {}\n<|im_end|>\n'
        '<|im_start|>tool\n{"sky": "clear"}<|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n'
    )


def test_calls_that_a_template_reads_in_some_messages_alone_are_refused_by_name(tmp_path: Path) -> None:
    codec, _ = loaded(tmp_path, DEEPSEEK)
    said = [*CALLED, Message("assistant", "Let me see.", (CALL,)), Message("tool", "fog")]
    with pytest.raises(InvalidFieldsError) as caught:
        codec.render(said, NOW)
    assert [violation.field for violation in caught.value.violations] == ["messages[4].tool_calls"]
