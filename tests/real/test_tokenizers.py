"""Real tokenizer files: the ids and texts of transformers, in pieces too, and prompts as its
apply_chat_template renders them."""

from __future__ import annotations

import functools
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.detokenizer import Detokenizer
from orchestrator.sessions.conversation.messages import NO_OPTIONS, Message, TemplateOptions
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import TokenizerFiles, load_tokenizer_files
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling.structure_compiler import StructureCompiler
from tests.real.files import MODEL_TYPES
from tests.real.texts import CALLS, CHATS, TEXTS, TOOLS, as_transformers_reads, tools_as_transformers_reads

NOW = datetime.now(UTC)
TEMPLATED = ("deepseek_v3", "gemma3", "llama3", "llama3_1", "qwen3")
SCHEMA = (
    '{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}'
)


@functools.cache
def files_of(directory: Path) -> TokenizerFiles:
    return load_tokenizer_files(str(directory))


@functools.cache
def codec_of(directory: Path) -> Codec:
    return Codec.from_files(files_of(directory).files)


@functools.cache
def in_transformers(directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture(params=MODEL_TYPES)
def directory(request: pytest.FixtureRequest, tokenizers: Path) -> Path:
    return tokenizers / str(request.param)


@pytest.fixture(params=TEMPLATED)
def templated(request: pytest.FixtureRequest, tokenizers: Path) -> Path:
    return tokenizers / str(request.param)


def test_ids_are_those_of_transformers(directory: Path) -> None:
    """Of Llama 2's file transformers builds another normalizer; there the file is followed."""
    codec, theirs = codec_of(directory), in_transformers(directory)
    if directory.name == "llama2":
        theirs = Tokenizer.from_file(str(directory / "tokenizer.json"))
    for text in TEXTS:
        ids, whole = theirs.encode(text, add_special_tokens=False), theirs.encode(text)
        if directory.name == "llama2":
            ids, whole = ids.ids, whole.ids
        assert codec.encode_rendered(text) == ids, text[:100]
        assert codec.encode_text(text) == whole, text[:100]


def test_texts_are_those_of_transformers_and_so_are_their_pieces_joined(directory: Path) -> None:
    codec, theirs = codec_of(directory), in_transformers(directory)
    for text in TEXTS:
        ids = codec.encode_rendered(text)
        assert codec.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert codec.text_with_special_tokens(ids) == theirs.decode(ids)
        assert streamed(codec, ids) == codec.decode(ids)


def streamed(codec: Codec, ids: list[int]) -> str:
    """The pieces of a turn's text joined. None of them ends inside a character."""
    detokenizer = Detokenizer(codec, [])
    pieces = [detokenizer.push(token)[0] for token in ids]
    rest = detokenizer.flush()
    assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in codec.decode(ids)
    return "".join([*pieces, rest])


def test_random_ids_lose_no_token_in_pieces(directory: Path) -> None:
    """Among them are bytes that make no character; where tokens are bytes, as with Llama 2 and
    Gemma, text that was told before them stays."""
    codec, draw = codec_of(directory), random.Random(5)
    for _ in range(50):
        ids = [draw.randrange(files_of(directory).token_count) for _ in range(100)]
        if directory.name in ("llama2", "gemma3"):
            ids = [token for token in ids if not (codec.tokenizer.id_to_token(token) or "").startswith("<0x")]
        assert streamed(codec, ids) == codec.decode(ids)


def test_the_bytes_of_tokens_joined_are_the_texts(directory: Path) -> None:
    codec = codec_of(directory)
    before = codec.text_with_special_tokens(codec.context)
    for text in TEXTS:
        ids = codec.encode_rendered(text)
        joined = b"".join(map(codec.token_bytes, ids)).decode(errors="replace")
        assert joined == codec.text_with_special_tokens([*codec.context, *ids]).removeprefix(before)


@pytest.mark.parametrize("options", [NO_OPTIONS, TOOLS], ids=["no tools", "tools"])
def test_prompts_are_those_of_apply_chat_template(templated: Path, options: TemplateOptions) -> None:
    """Where a template reads no tools or no calls, a conversation with some is refused by name."""
    for name, messages in {**CHATS, **CALLS}.items():
        if (templated.name, name) == ("deepseek_v3", "one call"):
            continue  # the next test's
        for opens_answer in (True, False):
            expected = by_transformers(templated, messages, options, opens_answer=opens_answer)
            assert ours(templated, messages, options, opens_answer=opens_answer) == expected, name


@pytest.mark.parametrize("opens_answer", [True, False])
def test_deepseeks_calls_are_rendered_as_the_template_alone_does(tokenizers: Path, opens_answer: bool) -> None:
    """It reads them beside a content of None, which apply_chat_template takes away."""
    directory = tokenizers / "deepseek_v3"
    called, tokenizer = as_transformers_reads(CALLS["one call"]), in_transformers(directory)
    called[1]["content"] = None
    function = called[1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    expected = environment.from_string(tokenizer.chat_template).render(
        messages=called, add_generation_prompt=opens_answer, **tokenizer.special_tokens_map
    )
    assert "Zürich" in expected
    assert ours(directory, CALLS["one call"], NO_OPTIONS, opens_answer=opens_answer) == expected


def by_transformers(directory: Path, messages: list[Message], options: TemplateOptions, *, opens_answer: bool) -> str:
    """The prompt, or our refusal of what the template refuses or loses."""
    tokenizer, tools = in_transformers(directory), tools_as_transformers_reads(options)

    def rendered(said: list[dict[str, Any]], given: Any) -> str:
        try:
            text: str = tokenizer.apply_chat_template(
                said, tools=given, add_generation_prompt=opens_answer, tokenize=False
            )
        except jinja2.TemplateError as error:
            return str(error)
        return text

    said = as_transformers_reads(messages)
    prompt = rendered(said, tools)
    if "roles must alternate" in prompt and len(prompt) < 100:
        return f"messages the chat template refuses them: {prompt}"
    lost: list[str] = []
    if tools and rendered(said, None) == prompt:
        lost.append("template_options.tools")
    for index, message in enumerate(said):
        less = [{**message, "tool_calls": None} if at == index else each for at, each in enumerate(said)]
        if "tool_calls" in message and rendered(less, tools) == prompt:
            lost.append(f"messages[{index}].tool_calls")
    return "; ".join(f"{name} are not read by the model's chat template" for name in lost) or prompt


def ours(directory: Path, messages: list[Message], options: TemplateOptions, *, opens_answer: bool) -> str:
    try:
        return codec_of(directory).render(messages, NOW, options, add_generation_prompt=opens_answer)
    except InvalidFieldsError as error:
        return str(error)


def test_ids_of_prompts_are_those_of_apply_chat_template(templated: Path) -> None:
    for messages in CHATS.values():
        said = as_transformers_reads(messages)
        try:
            expected = in_transformers(templated).apply_chat_template(said, add_generation_prompt=True)["input_ids"]
        except jinja2.TemplateError:
            continue
        rendered = ours(templated, messages, NO_OPTIONS, opens_answer=True)
        assert codec_of(templated).encode_rendered(rendered) == expected


def test_qwens_variable_turns_thinking_off(tokenizers: Path) -> None:
    options = TemplateOptions((), '{"enable_thinking": false}')
    expected = in_transformers(tokenizers / "qwen3").apply_chat_template(
        [{"role": "user", "content": "Hello"}], add_generation_prompt=True, tokenize=False, enable_thinking=False
    )
    assert ours(tokenizers / "qwen3", [Message("user", "Hello")], options, opens_answer=True) == expected


def test_a_schema_allows_the_tokens_of_a_text_that_obeys_it_and_no_others(directory: Path) -> None:
    codec, files = codec_of(directory), files_of(directory)
    (end,) = codec.encode_rendered(json.loads(files.files["tokenizer_config.json"])["eos_token"])
    row_count = max(files.token_count, codec.tokenizer.get_vocab_size())
    compiler = StructureCompiler(codec.tokenizer_json, row_count, [end])
    structure = Structure(StructureKind.JSON_SCHEMA, SCHEMA)
    compiler.compile(structure)
    before = codec.encode_rendered("a")
    for text, obeys in (
        ('{"city": "Zürich 你好", "days": 12}', True),
        ('{"city": 3}', False),
        ('{"days": 1}', False),
    ):
        matcher = compiler.matcher(structure)
        ids = codec.encode_rendered("a" + text)[len(before) :]
        allowed = all(matcher.allowed_mask()[token] and matcher.advance(token) for token in ids)
        assert allowed is obeys, text
