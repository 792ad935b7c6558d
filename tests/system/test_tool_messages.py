"""Tools, their results, and conversations held elsewhere, over gRPC: the prompt is what the chat
template makes of them, and a session keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Message, PeerError, Settings, TemplateOptions, Tool, ToolCall
from tests import tiny_models
from tests.chat_templates import read_tools
from tests.either_client import connected

SHORT = Settings(max_token_count=6, seed=5, temperature=1.0, ignore_end_tokens=True)
PARAMETERS = {"type": "object", "properties": {"town": {"type": "string"}}}
OPTIONS = TemplateOptions([Tool("weather", "Tell the weather.", PARAMETERS)], {"enable_thinking": False})
ASKED = [
    ("user", "And in Ulm?"),
    Message("assistant", "", [ToolCall("weather", {"town": "Ulm"}, "c1")]),
    Message("tool", "clear", tool_call_id="c1"),
]
IN_TRANSFORMERS = [
    {"role": "user", "content": "And in Ulm?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"town": "Ulm"}}}],
    },
    {"role": "tool", "content": "clear"},
]
FUNCTION = {"name": "weather", "description": "Tell the weather.", "parameters": PARAMETERS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path_factory.mktemp("model") / "target")
    return read_tools(directory)


@pytest.fixture(scope="module")
def services(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    store = tmp_path_factory.mktemp("store") / "sessions.db"
    with LocalServices(PairSettings(target=str(model), draft="", store=str(store))) as local:
        yield local


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_tools_and_their_results_are_in_the_prompt(kind: str, services: LocalServices, model: Path) -> None:
    expected = AutoTokenizer.from_pretrained(model).apply_chat_template(
        IN_TRANSFORMERS,
        tools=[{"type": "function", "function": FUNCTION}],
        add_generation_prompt=True,
        enable_thinking=False,
    )["input_ids"]
    with connected(kind, services.orchestrator_address) as client:
        assert list(client.tokenize(ASKED, template_options=OPTIONS).token_ids) == expected
        answered = client.answer(ASKED, SHORT, template_options=OPTIONS).wait()
        assert answered.token_ids == client.generate(expected, SHORT).wait().token_ids
        session = client.create_session(settings=SHORT, template_options=OPTIONS)
        assert session.send(ASKED).wait().token_ids == answered.token_ids


def test_a_session_goes_on_with_a_tools_result_and_its_fork_and_export_have_it(services: LocalServices) -> None:
    tools = TemplateOptions(OPTIONS.tools)
    with Client(services.orchestrator_address) as client, client.chat(settings=SHORT, template_options=tools) as chat:
        first = chat.send("And in Ulm?").wait()
        second = chat.send([Message("tool", "clear"), ("user", "So?")]).wait()
        assert second.cached_token_count >= first.prompt_token_count + len(first.token_ids) - 1
        roles = [message.role for message in client.get_session(chat.session_id).messages]
        assert roles == ["user", "assistant", "tool", "user", "assistant"]
        whole = client.export_session(chat.session_id)
        assert whole["turns"][0]["content"] == "And in Ulm?" and "messages" not in whole["turns"][0]
        assert [said["role"] for said in whole["turns"][1]["messages"]] == ["ROLE_TOOL", "ROLE_USER"]
        assert whole["templateOptions"]["tools"][0]["name"] == "weather"
        turn = client.get_turn(chat.session_id, 2)
        assert turn.template_options.tools[0].name == "weather"
        assert [said.content for said in turn.messages] == ["clear", "So?"]
        with client.fork_session(chat.session_id, 1) as fork:
            again = fork.send([Message("tool", "clear"), ("user", "So?")], SHORT).wait()
            assert again.token_ids == second.token_ids
        other = client.fork_session(chat.session_id, 1, template_options=TemplateOptions([Tool("now")]))
        following = other.send([Message("tool", "clear"), ("user", "So?")], SHORT).wait()
        assert following.prompt_token_count < second.prompt_token_count
        asked = client.get_session(other.session_id)
        assert [message.role for message in asked.messages] == roles


def test_what_the_template_cannot_read_is_refused_when_the_session_is_created(services: LocalServices) -> None:
    with Client(services.orchestrator_address) as client:
        with pytest.raises(PeerError) as caught:
            client.create_session(template_options=TemplateOptions(variables={"thinks": True}))
        assert [violation.field for violation in caught.value.violations] == ["template_options.variables"]
        with pytest.raises(PeerError) as caught:
            client.chat(session_id=client.create_session().session_id, template_options=OPTIONS)
        assert [violation.field for violation in caught.value.violations] == ["template_options"]


def test_a_restarted_process_goes_on_with_tools_and_their_results(model: Path, tmp_path: Path) -> None:
    pair = PairSettings(target=str(model), draft="", store=str(tmp_path / "sessions.db"))
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        session = client.create_session("Be brief.", SHORT, template_options=OPTIONS)
        session.send(ASKED).wait()
        expected = client.fork_session(session.session_id).send("So?").wait().token_ids
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        resumed = client.get_session(session.session_id)
        assert [message.role for message in resumed.messages] == ["system", "user", "assistant", "tool", "assistant"]
        assert list(resumed.messages[2].tool_calls) == [ToolCall("weather", '{"town": "Ulm"}', "c1")]
        assert resumed.send("So?").wait().token_ids == expected
