"""Files of prompts: what is read, what is refused by its line, and what an answer's key names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.cli.answering import Asking, listed
from slipstream.cli.prompt_lines import Prompt, read_prompts
from slipstream.cli.terminal import NotTextError
from slipstream.transport.reloading import FileError

ASKING = Asking(max_tokens=64, sampling={}, seed=7, concurrency=8)


def read(tmp_path: Path, content: str | bytes) -> list[Prompt]:
    path = tmp_path / "prompts"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_prompts("--prompts", path)


def test_objects_are_conversations_or_raw_texts(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "ä\n"}]
    lines = [json.dumps({"messages": messages}), "", json.dumps({"prompt": "def main("})]
    assert read(tmp_path, "\n".join(lines)) == [
        Prompt(1, (("system", "s"), ("user", "ä\n"))),
        Prompt(3, (), "def main("),
    ]


def test_the_mark_of_utf_8_is_no_text(tmp_path: Path) -> None:
    assert read(tmp_path, '\ufeff{"prompt": "a"}') == [Prompt(1, (), "a")]
    assert read(tmp_path, "\ufeffa") == [Prompt(1, (("user", "a"),))]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_a_newline_ends_a_line(mark: str, tmp_path: Path) -> None:
    assert read(tmp_path, f"a{mark}b\nc") == [Prompt(1, (("user", f"a{mark}b"),)), Prompt(2, (("user", "c"),))]
    if mark > "\x7f":  # JSON allows it in a string
        assert read(tmp_path, f'{{"prompt": "a{mark}b"}}\r\n{{"prompt": "c"}}') == [
            Prompt(1, (), f"a{mark}b"),
            Prompt(2, (), "c"),
        ]


def test_other_lines_are_users_messages(tmp_path: Path) -> None:
    assert read(tmp_path, "What is a list?\r\n\n [1] {2}\n") == [
        Prompt(1, (("user", "What is a list?"),)),
        Prompt(3, (("user", " [1] {2}"),)),
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "Expecting property name"),
        ("[]", "it must be an object with messages or prompt"),
        ("{}", "it must be an object with messages or prompt"),
        ('{"prompt": "a", "max_tokens": 3}', "and nothing else"),
        ('{"prompt": ""}', "prompt must be a text that is not empty"),
        ('{"prompt": 3}', "prompt must be a text that is not empty"),
        ('{"messages": []}', "messages must be a list of at least one message"),
        ('{"messages": ["a"]}', "messages[0] must be an object with role and content"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', "messages[0].role must be system, user or assistant"),
        ('{"messages": [{"role": "user", "content": [1]}]}', "messages[0].content must be a text"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "the last message must be a user's"),
    ],
)
def test_a_wrong_line_is_named_with_its_fault(tmp_path: Path, line: str, fault: str) -> None:
    with pytest.raises(FileError) as refusal:
        read(tmp_path, '{"prompt": "a"}\n\n' + line)
    assert str(refusal.value).startswith(f"--prompts {tmp_path / 'prompts'} must have")
    assert "but line 3: " in str(refusal.value) and fault in str(refusal.value)


def test_of_many_wrong_lines_some_are_shown(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"line 6: .*; and 4 more$"):
        read(tmp_path, '{"prompt": "a"}\n' + "{}\n" * 9)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_a_prompt_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(FileError, match="has no prompt"):
        read(tmp_path, content)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"--prompts .* cannot be read: No such file"):
        read_prompts("--prompts", tmp_path / "none")
    with pytest.raises(NotTextError, match="is not UTF-8"):
        read(tmp_path, b"\xff")


def test_a_key_names_target_settings_prompt_and_line() -> None:
    prompt = Prompt(3, (), "a")
    key = ASKING.key("target", prompt)
    assert replace(ASKING, concurrency=1).key("target", prompt) == key
    for target, asking, other in (
        ("another", ASKING, prompt),
        ("target", replace(ASKING, seed=8), prompt),
        ("target", replace(ASKING, sampling={"temperature": 0.0}), prompt),
        ("target", replace(ASKING, sampling={"top_p": 0.9}), prompt),
        ("target", replace(ASKING, max_tokens=65), prompt),
        ("target", ASKING, Prompt(4, (), "a")),
        ("target", ASKING, Prompt(3, (("user", "a"),))),
    ):
        assert asking.key(target, other) != key


def test_line_numbers_are_listed_in_order() -> None:
    assert listed([3, 1]) == "1, 3"
    assert listed(range(14)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 4 more"
