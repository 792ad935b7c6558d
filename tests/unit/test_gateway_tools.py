"""Calls of tools are enforced by grammars in the format of the model, and the format reads them
back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jinja2
import numpy as np
import pytest

from gateway.chat_completions import ChatRequest
from gateway.errors import ApiError
from gateway.gateway import Gateway, Model
from gateway.parts import collected
from gateway.tool_formats import TOOL_FORMATS
from gateway.tool_formats.of_template import parser_of_template
from gateway.tools import OfferedTool, ToolUse
from slipstream.client import Message, PeerError, TemplateOptions
from slipstream.client.results import Tokens
from slipstream.errors import Code
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling.structure_compiler import StructureCompiler
from tests.chat_templates import byte_tokenizer

COMPILER = StructureCompiler(byte_tokenizer(["<end>"]).to_str(), 257, [256])
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def use_of(*tools: dict[str, Any], **fields: Any) -> ToolUse:
    return ChatRequest.model_validate({**CHAT, "tools": list(tools), "tool_choice": "required", **fields}).tool_use()


def structure_of(use: ToolUse, parser: str) -> Structure:
    structure = use.structure(TOOL_FORMATS[parser])
    assert structure is not None and structure.grammar is not None
    return Structure(StructureKind.GRAMMAR, structure.grammar)


def random_text(structure: Structure, seed: int) -> str:
    """Return a text of the structure: each byte is one of those that may come."""
    rng, matcher = np.random.default_rng(seed), COMPILER.matcher(structure)
    tokens: list[int] = []
    alphabet = byte_tokenizer(["<end>"])
    for _ in range(2000):
        allowed = np.flatnonzero(matcher.allowed_mask())
        token = int(256 if 256 in allowed and rng.random() < 0.5 else rng.choice(allowed))
        if token == 256:
            return alphabet.decode(tokens, skip_special_tokens=False)
        matcher.advance(token)
        tokens.append(token)
    raise AssertionError("the text does not end")


PARAMETERS = {
    "type": "object",
    "title": "no constraint",
    "properties": {
        "description": {"type": "boolean", "description": "a name that a keyword has too"},
        "n": {"enum": [1, "é\n"]},
    },
    "required": ["description", "n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("parser", TOOL_FORMATS)
@pytest.mark.parametrize("seed", range(20))
def test_texts_of_the_grammar_are_calls_that_the_format_reads(parser: str, seed: int) -> None:
    structure = structure_of(use_of(tool("first", PARAMETERS), tool("second")), parser)
    reader = TOOL_FORMATS[parser].reader()
    content, _, calls = collected([*reader.feed(random_text(structure, seed)), *reader.finish()])
    assert not content
    assert calls
    for call in calls:
        arguments = json.loads(call.arguments)
        if call.name == "first":
            assert list(arguments) == ["description", "n"]
            assert arguments["description"] in (True, False) and arguments["n"] in (1, "é\n")
        else:
            assert (call.name, arguments) == ("second", {})


@pytest.mark.parametrize("parser", TOOL_FORMATS)
def test_one_call_may_be_enforced(parser: str) -> None:
    one = structure_of(use_of(tool("f"), parallel_tool_calls=False), parser)
    several = structure_of(use_of(tool("f")), parser)
    assert {random_text(one, seed).count('"name"') for seed in range(10)} == {1}
    assert max(random_text(several, seed).count('"name"') for seed in range(10)) > 1


@pytest.mark.parametrize("parser", TOOL_FORMATS)
def test_tools_at_their_limits_are_enforced(parser: str) -> None:
    many = [tool(f"f{number:063}", PARAMETERS) for number in range(128)]
    COMPILER.validate(structure_of(use_of(*many), parser))
    large = {"type": "object", "properties": {f"a property {number}": {"type": "integer"} for number in range(1000)}}
    assert len(json.dumps(large)) > 30_000
    wordy = {**PARAMETERS, "description": "x" * 100_000}
    COMPILER.validate(structure_of(use_of(tool("f", large), tool("g", wordy)), parser))


def test_what_limits_nothing_is_left_out_of_the_schema() -> None:
    schema = {
        "description": "d",
        "properties": {"title": {"title": "t", "const": {"title": 1}}, "x": {"$ref": "#/$defs/default"}},
        "$defs": {"default": {"anyOf": [{"default": 1, "enum": [{"default": 2}]}]}},
    }
    (function,) = use_of(tool("f", schema)).forced
    assert function.parameters == schema
    grammar = structure_of(use_of(tool("f", schema)), "hermes").source
    assert json.loads(grammar.partition("%json ")[2]) == {
        "type": "object",
        "properties": {"title": {"const": {"title": 1}}, "x": {"$ref": "#/$defs/default"}},
        "$defs": {"default": {"anyOf": [{"enum": [{"default": 2}]}]}},
    }


def test_tools_that_are_too_large_to_enforce_are_refused_before_they_are_looked_at() -> None:
    large = tool("f", {"type": "object", "description": "x" * 2**20})
    assert use_of(large, tool_choice="auto").structure(TOOL_FORMATS["hermes"]) is None
    with pytest.raises(ApiError) as caught:
        use_of(large).structure(TOOL_FORMATS["hermes"])
    assert caught.value.param == "tools"


def test_a_schema_of_too_many_levels_is_named() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    named = OfferedTool("f", None, deep, "tools[0].function.parameters")
    for use in (ToolUse([named]).template_tools, lambda: ToolUse([named], [named]).structure(TOOL_FORMATS["hermes"])):
        with pytest.raises(ApiError) as caught:
            use()
        assert caught.value.param == "tools[0].function.parameters"


def test_a_server_without_a_format_enforces_no_call() -> None:
    with pytest.raises(ApiError) as caught:
        use_of(tool("f")).structure(None)
    assert caught.value.param == "tool_choice"
    assert use_of(tool("f"), tool_choice="auto").structure(None) is None
    assert use_of(tool("f"), tool_choice="none") == ToolUse()


class TemplateClient:
    """A caller's client to a model whose chat template makes a text of any conversation."""

    def __init__(self, template: str, error: PeerError | None = None) -> None:
        self._template = template
        self._error = error
        self.asked = 0

    async def tokenize(self, messages: list[Message], *, template_options: TemplateOptions) -> Tokens:
        """Return tokens: bytes of the text."""
        self.asked += 1
        if self._error is not None:
            raise self._error
        text = jinja2.Template(self._template).render(call=messages[1].tool_calls[0], tools=template_options.tools)
        return Tokens(tuple(text.encode()), 1000)

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        """Return the text of tokens."""
        return bytes(token_ids).decode()


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ('<tool_call>\n{"name": "{{ call.name }}", "arguments": {{ call.arguments }}}\n</tool_call>', "hermes"),
        ('{"name": "{{ call.name }}", "parameters": {{ call.arguments }}}', "llama3_json"),
        ('{"name":"{{ call.name }}","parameters":{{ call.arguments }}}', "llama3_json"),
        ('{"parameters": {}, "name": "{{ tools[0].name }}"}', "hermes"),
        ("[TOOL_CALLS]", "hermes"),
    ],
)
def test_the_format_is_the_one_in_which_the_chat_template_writes_a_call(template: str, expected: str) -> None:
    client: Any = TemplateClient(template)
    assert asyncio.run(parser_of_template(client)) == expected


def test_a_template_that_takes_no_tools_tells_no_format() -> None:
    client: Any = TemplateClient(
        "", PeerError(Code.INVALID_ARGUMENT, "INVALID_FIELDS", "the template does not read tools")
    )
    assert asyncio.run(parser_of_template(client)) == "hermes"
    lost: Any = TemplateClient("", PeerError(Code.UNAVAILABLE, "NOT_READY", "lost"))
    with pytest.raises(PeerError):
        asyncio.run(parser_of_template(lost))


@pytest.mark.parametrize(
    ("parser", "has_tools", "expected", "asked"),
    [
        ("auto", True, "llama3_json", 1),
        ("auto", False, "off", 0),
        ("hermes", True, "hermes", 0),
        ("hermes", False, "off", 0),
        ("off", True, "off", 0),
    ],
)
def test_a_chat_template_is_asked_once_and_only_if_tools_need_it(
    parser: Any, has_tools: bool, expected: str, asked: int
) -> None:
    client: Any = TemplateClient('{"name": "{{ call.name }}", "parameters": {{ call.arguments }}}')
    gateway = Gateway(client, tool_call_parser=parser)
    model = Model("m", 100, "f", 1.0, 1.0)
    for _ in range(2):
        reading = asyncio.run(gateway.reading(client, model, has_tools=has_tools))
        assert reading.tool_format is TOOL_FORMATS.get(expected)
    assert client.asked == asked
