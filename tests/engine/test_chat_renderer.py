"""The process that renders chat templates: its limits, long conversations, and what counts as a
message left out."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator.chat_templates.renderer import LONG_RENDERER, RENDERER, Renderer
from orchestrator.chat_templates.rendering import Conversation, RenderingError, render
from orchestrator.errors import OverloadedError, PromptTooLongError
from orchestrator.processes.peer_startup import wait_for_codec
from orchestrator.sessions.conversation.codec import LONG, Codec
from orchestrator.sessions.conversation.messages import Message
from orchestrator.sessions.turns.pair import Conversation as Prompt
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from tests.engine.test_prompt_fields import pair

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FILES = load_tokenizer_files(str(embedded_directory("target"))).files
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
PAIRWISE = "{% for a in messages %}{% for b in messages %}{% endfor %}{% endfor %}" + PLAIN


def codec(template: str) -> Codec:
    return Codec.from_files({**FILES, "chat_template.jinja": template.encode()})


def chat(*contents: str) -> list[Message]:
    return [Message(("user", "assistant")[index % 2], content) for index, content in enumerate(contents)]


def pid_of(renderer: Renderer) -> int:
    child = renderer._child
    assert child is not None
    return child.pid


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    made = Renderer()
    yield made
    made.close()


def test_twenty_thousand_short_messages_are_rendered() -> None:
    messages = chat(*[f"message {index}" for index in range(20_001)])
    assert codec(PLAIN).render(messages, NOW) == "".join(f"<{m.role}>{m.content}" for m in messages)


def test_of_thousands_of_messages_left_out_some_are_named() -> None:
    """A search for each message's words in all of the text would take longer than the child may."""
    messages = chat(*[f"{index}: {'a' * 50}" for index in range(20_001)])
    users_alone = codec("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(InvalidFieldsError, match="left out") as caught:
        users_alone.render(messages, NOW)
    assert [v.field for v in caught.value.violations][:2] == ["messages[1].content", "messages[3].content"]


def test_a_short_conversation_waits_for_no_long_one() -> None:
    """The long one's process is stopped, so the long one cannot end before the short one."""
    plain = codec(PLAIN)
    long = [Message("user", "word " * LONG)]
    expected = plain.render(long, NOW)
    pid = pid_of(LONG_RENDERER)
    os.kill(pid, signal.SIGSTOP)
    try:
        rendered: list[str] = []
        waiting = threading.Thread(target=lambda: rendered.append(plain.render(long, NOW)))
        waiting.start()
        assert plain.render(chat("hello"), NOW) == "<user>hello"
        assert not rendered
    finally:
        os.kill(pid, signal.SIGCONT)
    waiting.join()
    assert rendered == [expected]


def _said(content: str) -> Conversation:
    return Conversation([{"role": "user", "content": content}], {}, NOW)


@pytest.mark.parametrize("length", [5, 1_000_000])
def test_a_process_that_does_not_answer_is_ended_and_the_next_conversation_is_rendered(
    renderer: Renderer, length: int
) -> None:
    """A long request does not even fit into the pipe."""
    assert renderer.render(PLAIN, _said("hello")).text == "<user>hello"
    pid = pid_of(renderer)
    os.kill(pid, signal.SIGSTOP)
    renderer.wall_seconds = 0.1
    with pytest.raises(OverloadedError, match=r"not answered within 0.1 s") as caught:
        renderer.render(PLAIN, _said("a" * length))
    assert caught.value.metadata == {"limit": "chat_templates"}
    renderer.wall_seconds = 60
    assert renderer.render(PLAIN, _said("hello")).text == "<user>hello"
    assert pid_of(renderer) != pid


def test_a_process_that_is_stopped_can_be_closed(renderer: Renderer) -> None:
    renderer.render(PLAIN, _said("hello"))
    os.kill(pid_of(renderer), signal.SIGSTOP)
    renderer.close()


def test_a_process_that_another_killed_is_started_again(renderer: Renderer) -> None:
    renderer.render(PLAIN, _said("hello"))
    os.kill(pid_of(renderer), signal.SIGKILL)
    assert renderer.render(PLAIN, _said("hello")).text == "<user>hello"


def _no_process(*_: Any, **__: Any) -> Any:
    raise OSError(11, "Resource temporarily unavailable")


async def test_a_process_that_cannot_be_started_is_an_overload(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = codec(PLAIN)
    RENDERER.close()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", _no_process)
        with pytest.raises(OverloadedError, match="Resource temporarily unavailable") as caught:
            plain.render(chat("hello"), NOW)
        assert caught.value.metadata == {"limit": "chat_templates"}
        assert caught.value.retry_after
        with caplog.at_level(logging.WARNING):
            await wait_for_codec(_Peer())
    assert "chat template could not be tested" in caplog.text
    assert plain.render(chat("hello"), NOW) == "<user>hello"


class _Peer:
    """A verifier that serves."""

    role = "verifier"

    async def wait_until_serving(self) -> Any:
        return pair().target

    async def fetch_tokenizer(self) -> dict[str, bytes]:
        return FILES


@pytest.mark.parametrize("template", ["{{ messages[0].content[:4] }}", "{{ messages[0].content[:4] | tojson }}"])
def test_parts_are_never_printed_as_a_value(template: str) -> None:
    quoted = '"Hi"' if "tojson" in template else "Hi"
    assert codec(template).render(chat("Hi"), NOW) == quoted
    with pytest.raises(InvalidFieldsError, match=r"messages\[0\].content is left out"):
        codec(template).render(chat("Hello there"), NOW)


def test_a_template_of_parts_may_use_them_as_it_uses_dicts() -> None:
    template = (
        "{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' and part is mapping %}"
        "{{ part['text'] }}{{ part.get('image', '') }}{% for key, value in part.items() %}{{ key }}{% endfor %}"
        "{% endif %}{% endfor %}{% endfor %}"
    )
    assert codec(template).render(chat("Hi"), NOW) == "Hitypetext"


@pytest.mark.parametrize("change", ["replace('z', '')", "truncate(9, true, '')", "lower", "upper", "capitalize"])
def test_a_short_message_is_there_though_the_template_changes_marks(change: str) -> None:
    said = "OK" if change == "upper" else "Ok" if change == "capitalize" else "ok"
    assert (
        codec(f"{{% for m in messages %}}<{{{{ m.content | {change} }}}}>{{% endfor %}}").render(
            chat(said, said, said), NOW
        )
        == f"<{said}>" * 3
    )


def test_a_short_message_that_is_left_out_is_told_though_another_has_its_words() -> None:
    with pytest.raises(InvalidFieldsError) as caught:
        codec("<{{ messages[-1].content }}>").render(chat("on", "yes", "on it"), NOW)
    assert [violation.field for violation in caught.value.violations] == ["messages[0].content", "messages[1].content"]


def test_thousands_of_short_messages_may_have_text_around_each() -> None:
    around = codec("{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ 'x' * 100 ~ m.content }}{% endfor %}")
    assert around.render(chat(*["ok"] * 11_001), NOW).count("ok") == 11_001


async def test_a_conversation_that_a_template_cannot_take_in_its_time_is_too_long() -> None:
    served, messages = pair(PAIRWISE), tuple(chat(*["ok"] * 20_001))
    assert served.codec.template_fault(NOW) is None
    with pytest.raises(PromptTooLongError, match="2 s of processor time") as caught:
        served.codec.render(messages, NOW)
    assert [violation.field for violation in caught.value.violations] == ["messages"]


async def test_a_prompt_that_is_too_long_for_the_template_is_told_by_the_callers_path() -> None:
    loop = "{% for i in range(9999) %}{% if 'much' in messages[0].content %}{{ 'x' * 9999 }}{% endif %}{% endfor %}"
    served = pair(loop + PLAIN)
    assert served.codec.template_fault(NOW) is None
    with pytest.raises(PromptTooLongError, match="far more text") as caught:
        await served.encode(Prompt((Message("user", "so much"),)), NOW)
    assert [violation.field for violation in caught.value.violations] == ["conversation.messages"]
    assert caught.value.metadata["context_length"] == str(served.target.context_length)


def test_the_places_of_contents_are_those_in_the_text() -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
    said = [
        {"role": role, "content": content}
        for role, content in [("user", "user"), ("assistant", "  assistant "), ("user", "")]
    ]
    rendered = render(template, Conversation(said, {}, NOW))
    assert rendered.text == "user: user\nassistant: assistant\nuser: \n"
    assert rendered.places == (6, 22, 38)
    counts = "{% for m in messages %}{{ m.content | length }}{{ m.content }}{% endfor %}"
    assert render(counts, Conversation(said, {}, NOW)).places == (None, None, None)


def test_a_child_answers_in_lines_of_json() -> None:
    command = [sys.executable, "-m", "orchestrator.chat_templates.child"]
    asked: dict[str, object] = {
        "source": PLAIN,
        "messages": [{"role": "user", "content": "é\n"}],
        "variables": {},
        "special_tokens": {},
        "clock": NOW.isoformat(),
    }
    asked["add_generation_prompt"] = True
    done = subprocess.run(command, input=json.dumps(asked) + "\n", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["text"] == "<user>é\n"
    assert len(re.findall("\n", done.stdout)) == 1


def test_an_error_of_a_limit_says_so() -> None:
    with pytest.raises(RenderingError) as caught:
        render("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", _said("a"))
    assert caught.value.limited
