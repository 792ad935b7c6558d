"""Answers are read by their parts, whole and cut anywhere: calls of tools in two formats, and
reasoning."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from gateway.parts import PartReader, collected
from gateway.reading import Reading
from gateway.reasoning import ReasoningReader
from gateway.tool_formats import TOOL_FORMATS
from slipstream.client import Delta, Result

Read = tuple[str, str, list[tuple[str, str]]]
"""Content, reasoning, and calls with their arguments."""

READERS: dict[str, Callable[[], PartReader]] = {
    "hermes": TOOL_FORMATS["hermes"].reader,
    "llama3_json": TOOL_FORMATS["llama3_json"].reader,
    "deepseek_r1": lambda: ReasoningReader(TOOL_FORMATS["hermes"].reader(), is_open=True),
    "qwen3": lambda: ReasoningReader(TOOL_FORMATS["hermes"].reader(), is_open=False),
}


def read(reader: PartReader, *texts: str) -> Read:
    parts = [part for text in texts for part in reader.feed(text)]
    content, reasoning, calls = collected([*parts, *reader.finish()])
    return content, reasoning, [(call.name, call.arguments) for call in calls]


def hermes(arguments: str, name: str = "f") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


HARD = r'{"a": "}\"{ \\", "b": [1, {"c": null}], "d": "\ud83d\ude00 é</tool_call>", "e": -1.5e3}'
CASES: list[tuple[str, str, Read]] = [
    ("hermes", f"Let me see.\n{hermes(HARD)}", ("Let me see.", "", [("f", HARD)])),
    ("hermes", f"{hermes('{}')}\n{hermes(HARD, 'g')}\n", ("", "", [("f", "{}"), ("g", HARD)])),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', ("", "", [("f", '{"a": 1}')])),
    (
        "hermes",
        '<tool_call> { "id" : [{"}": "]"}] , "x":"y\\"", "z": -1 , "name" : "f" , "parameters" : {} } </tool_call> z',
        ("z", "", [("f", "{}")]),
    ),
    ("hermes", r'<tool_call>{"n\u0061me": "\u0066", "arguments": {}}', ("", "", [("f", "{}")])),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "b', ("", "", [("f", '{"a": "b')])),
    ("hermes", f"{hermes('{}')} and {hermes('{}')} done", ("and done", "", [("f", "{}"), ("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, oops', ("oops", "", [("f", "{}")])),
    ("hermes", f"<tool_call>{hermes('{}')}", ("<tool_call>", "", [("f", "{}")])),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}}', ("", "", [("f", '{"a": 1}')])),
    ("llama3_json", '\n<|python_tag|>{"name": "f", "arguments": {}}', ("", "", [("f", "{}")])),
    (
        "llama3_json",
        f'{{"type": "function", "name": "f", "parameters": {HARD}}} ; {{"name": "g", "parameters": {{}}}};',
        (";", "", [("f", HARD), ("g", "{}")]),
    ),
    ("llama3_json", '{"name": "f", "parameters": {}} {"name": "g"}', ('{"name": "g"}', "", [("f", "{}")])),
    ("deepseek_r1", f"hm\n\nhm\n</think>\n\nYes\n{hermes('{}')}", ("Yes", "hm\n\nhm", [("f", "{}")])),
    ("deepseek_r1", "\n<think>\nhm</think>\n\nYes", ("Yes", "hm", [])),
    ("deepseek_r1", f"hm {hermes('{}')}", ("", f"hm {hermes('{}')}", [])),
    ("deepseek_r1", "hm</thi", ("", "hm</thi", [])),
    ("deepseek_r1", "</think>Yes</think>", ("Yes</think>", "", [])),
    ("qwen3", "<think>\nhm\n</think>\n\nYes", ("Yes", "hm", [])),
    ("qwen3", "<think>\n\n</think>\n\n", ("", "", [])),
    ("qwen3", "<think>hm", ("", "hm", [])),
]
CONTENT = [
    ("hermes", "no call <tool_call"),
    ("hermes", "\n\n a <tool_call> b </tool_call>\n"),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 1, "arguments": {}}</tool_call>'),
    ("hermes", r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "a\nb", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}'),
    ("hermes", '<tool_call>{"name": "f", "argu'),
    ("hermes", "<tool_call>[]</tool_call>"),
    ("hermes", '{"name": "f", "arguments": {}}'),
    ("llama3_json", " an answer"),
    ("llama3_json", '{"name": "Ann", "age": 3} is she'),
    ("llama3_json", '{"name": "Ann", "parameters": 3}'),
    ("llama3_json", 'see {"name": "f", "parameters": {}}'),
    ("llama3_json", "<|python_tag|>print(1)"),
    ("llama3_json", "<|python"),
    ("llama3_json", "  \n"),
    ("qwen3", " \nYes <think> no </think>"),
    ("qwen3", "  <thi"),
]
CASES += [(reader, text, (text, "", [])) for reader, text in CONTENT]


@pytest.mark.parametrize(("reader", "text", "expected"), CASES)
def test_parts_are_the_same_wherever_the_text_is_cut(reader: str, text: str, expected: Read) -> None:
    new = READERS[reader]
    assert read(new(), text) == expected
    assert read(new(), *text) == expected
    for cut in range(len(text) + 1):
        assert read(new(), text[:cut], text[cut:]) == expected
        assert read(new(), text[:cut], text[cut : cut + 3], text[cut + 3 :]) == expected


@pytest.mark.parametrize("seed", range(200))
def test_random_pieces_of_calls_are_read_alike_wherever_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    pieces = [
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", ',
        '"arguments": {',
        "}",
        '"',
        "\\",
        "\n",
        " ",
        "a",
        ";",
        "[",
        "]",
    ]
    pieces += ["<think>", "</think>", "<|python_tag|>", '"parameters"', ": ", ",", "é😀"]
    text = "".join(rng.choices(pieces, k=rng.randrange(40)))
    for new in READERS.values():
        whole = read(new(), text)
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(8)))
        assert read(new(), *(text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)]))) == whole


def hostile(length: int) -> dict[str, tuple[str, str]]:
    """Return texts of about so many characters, with their readers."""
    return {
        "nested": ("hermes", hermes('{"a": ' * (length // 7) + "1" + "}" * (length // 7))),
        "opened": ("hermes", "<tool_call>{" + "[" * length),
        "marks": ("hermes", "<tool_call>" * (length // 11)),
        "nearly marks": ("hermes", "<tool_call" * (length // 10)),
        "escapes": ("hermes", '<tool_call>{"' + '\\"' * (length // 2)),
        "line breaks": ("hermes", "\n" * length),
        "spaces in a call": ("hermes", "<tool_call>" + " " * length),
        "members": ("hermes", "<tool_call>{" + '"a": 1, ' * (length // 8)),
        "calls": ("hermes", (hermes("{}") + "\n") * (length // 60)),
        "spaces at the start": ("llama3_json", " " * length),
        "calls after semicolons": ("llama3_json", '{"name": "f", "parameters": {}};' * (length // 30)),
        "thoughts": ("qwen3", "<think>" + "</thin" * (length // 6)),
    }


@pytest.mark.parametrize("what", hostile(0))
def test_hostile_texts_are_read_alike_wherever_they_are_cut(what: str) -> None:
    """A reader of quadratic cost takes minutes."""
    reader, text = hostile(4 * 10**4)[what]
    by_characters = read(READERS[reader](), *text)
    assert by_characters == read(READERS[reader](), text)
    assert any(by_characters) or text.isspace()
    reader, text = hostile(10**6)[what]
    assert read(READERS[reader](), text) == read(
        READERS[reader](), *(text[at : at + 1000] for at in range(0, len(text), 1000))
    )


def result(text: str, counts: list[int]) -> Result:
    return Result(text, list(range(len(counts))), token_text_byte_counts=counts, finish_reason="END_TOKEN")


@pytest.mark.parametrize(
    ("text", "counts", "expected"),
    [
        ("<think>é</think>Yes", [7, 2, 8, 3], 3),
        ("<think>é</think>Yes", [7, 2, 4, 7], 4),
        ("<think>é", [7, 2, 0], 3),
        ("Yes", [1, 2], 0),
    ],
)
def test_tokens_of_reasoning_are_counted(text: str, counts: list[int], expected: int) -> None:
    reading = Reading("qwen3")
    assert reading.read(result(text, counts)).reasoning_token_count == expected
    reader, at = reading.reader(), 0
    for token, count in enumerate(counts):
        piece = text.encode()[at : at + count].decode()
        reader.feed(Delta(piece, (token,), token_text_byte_counts=(count,)))
        at += count
    reader.finish()
    assert reader.reasoning_token_count == expected


def test_an_answer_that_calls_a_tool_ends_for_it_unless_it_breaks_off() -> None:
    reading = Reading(tool_format=TOOL_FORMATS["hermes"])
    whole: dict[str, Any] = {"text": hermes("{}")}
    assert reading.read(Result(finish_reason="END_TOKEN", **whole)).finish_reason == "tool_calls"
    assert reading.read(Result(finish_reason="MAX_TOKENS", **whole)).finish_reason == "length"
    assert reading.read(Result("Hi", finish_reason="END_TOKEN")).finish_reason == "stop"
