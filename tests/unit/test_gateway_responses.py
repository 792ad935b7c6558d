"""Events of a response depend on its tokens alone, and say how it failed; ids name their turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import openai.types.responses as of_openai
import pytest
from pydantic import TypeAdapter

from gateway.answers import Answers
from gateway.errors import ApiError
from gateway.gateway import Model
from gateway.reading import Reading
from gateway.responses.form import ResponseForm
from gateway.responses.ids import TurnId, conversation_id, session_of, turn_of
from gateway.responses.note import Note, note_of
from gateway.responses.resource import AskedResponse, ToldSettings
from gateway.responses.writing import by_token
from gateway.tool_formats import TOOL_FORMATS
from slipstream.client import Delta, Result, TokenLogprobs

TURN = TurnId("0123456789abcdef", 12)
MODEL = Model("m", 100, "f", 1.0, 1.0)
SETTINGS = ToldSettings(None, None, None, None, None, None)
ANSWER = '<think>\nWell…</think>\n\nSo: é🐍<tool_call>\n{"name": "f", "arguments": {"a": "ü"}}\n</tool_call>'
EVENT: TypeAdapter[Any] = TypeAdapter(of_openai.ResponseStreamEvent)


class Said:
    """Answers whose deltas are given."""

    def __init__(self, deltas: Sequence[Delta], result: Result, error: ApiError | None = None) -> None:
        self.results = [result]
        self._deltas = deltas
        self._error = error

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        for delta in self._deltas:
            yield 0, delta
        if self._error is not None:
            raise self._error


def result_of(text: str = "", **fields: Any) -> Result:
    return Result(text, session_id=TURN.session_id, turn=TURN.turn, **fields)


def form(*, first: int = 0, top_logprobs: int | None = None) -> ResponseForm:
    note = Note(created=5, model="m", top_logprobs=top_logprobs)
    reading = Reading("qwen3", TOOL_FORMATS["hermes"])
    return ResponseForm(AskedResponse(note, SETTINGS, None, [], MODEL), reading, first)


async def events(deltas: Sequence[Delta], result: Result, error: ApiError | None = None, **more: Any) -> list[Any]:
    said = cast(Answers, Said(deltas, result, error))
    return [event async for event in form(**more).chunks(said)]


def cut(text: str, sizes: Sequence[int]) -> list[Delta]:
    """Return a text with a token for each character, in deltas of so many tokens."""
    deltas, at = [], 0
    for size in sizes:
        part = text[at : at + size]
        ids = tuple(range(at, at + len(part)))
        logprobs = tuple(TokenLogprobs(index, -0.5, token_bytes=text[index].encode()) for index in ids)
        counts = tuple(len(character.encode()) for character in part)
        deltas.append(Delta(part, ids, at, logprobs, token_text_byte_counts=counts))
        at += size
    return deltas


@pytest.mark.parametrize(
    "sizes", [[1] * len(ANSWER), [7, 30, 2, 1, len(ANSWER)], [len(ANSWER)]], ids=["one", "some", "all"]
)
async def test_events_do_not_depend_on_how_the_tokens_come(sizes: list[int]) -> None:
    ended = result_of(ANSWER, finish_reason="END_TOKEN", generated_token_count=len(ANSWER))
    expected = await events(cut(ANSWER, [1] * len(ANSWER)), ended, top_logprobs=0)
    found = await events(cut(ANSWER, sizes), ended, top_logprobs=0)
    assert found == expected
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    for event in found:
        EVENT.validate_python(event, strict=True)
    rest = await events(cut(ANSWER, sizes), ended, top_logprobs=0, first=20)
    assert rest == expected[20:]
    items = found[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    assert items[0]["content"][0]["text"] == "Well…"
    assert items[1]["content"][0]["text"] == "So: é🐍"
    assert "".join(token["token"] for token in items[1]["content"][0]["logprobs"]).endswith("So: é🐍")
    assert items[2]["arguments"] == '{"a": "ü"}'


async def test_a_whole_response_is_that_of_its_stream() -> None:
    deltas = cut(ANSWER, [10, len(ANSWER) - 10])
    whole = result_of(finish_reason="MAX_TOKENS")
    for delta in deltas:
        whole.append_delta(delta)
    streamed = await events(deltas, whole, top_logprobs=0)
    assert streamed[-1]["type"] == "response.incomplete"
    assert form(top_logprobs=0).whole([whole]) == streamed[-1]["response"]


@pytest.mark.parametrize(
    ("status", "code"), [(429, "rate_limit_exceeded"), (400, "invalid_prompt"), (503, "server_error")]
)
async def test_a_turn_that_fails_ends_its_stream_with_the_reason(status: int, code: str) -> None:
    failed = result_of("So", weights_fingerprint="w", generated_token_count=2)
    *_, item, last = await events(cut("So", [2]), failed, ApiError(status, "it broke"))
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": code, "message": "it broke"}
    assert item["item"]["status"] == "incomplete"
    EVENT.validate_python(last, strict=True)


async def test_a_stream_that_is_lost_does_not_say_that_its_response_failed() -> None:
    running = result_of("So")
    *_, last = await events(cut("So", [2]), running, ApiError(503, "away", code="not_ready"))
    assert (last["type"], last["code"], last["message"]) == ("error", "not_ready", "away")
    EVENT.validate_python(last, strict=True)


def test_text_that_no_token_made_certain_comes_last() -> None:
    whole = Delta("aébc", (1, 2), token_text_byte_counts=(1, 2))
    assert [(piece.text, piece.token_ids, piece.token_offset) for piece in by_token(whole)] == [
        ("a", (1,), 0),
        ("é", (2,), 1),
        ("bc", (), 2),
    ]
    for untold in (Delta("ab", (1, 2)), Delta("ab"), Delta("a", (1,), token_text_byte_counts=(2,))):
        assert list(by_token(untold)) == [untold]


def test_ids_name_their_turns() -> None:
    assert turn_of(TURN.response_id) == TURN
    assert session_of(conversation_id(TURN.session_id)) == TURN.session_id
    for wrong in ("", "resp_1", f"{TURN.response_id} ", "resp_0123456789abcdef_0", "resp_0123456789ABCDEF_1"):
        assert turn_of(wrong) is None
        assert session_of(wrong) is None


def test_a_note_is_read_again_and_others_are_no_notes() -> None:
    note = Note(
        created=5, model="m", background=True, metadata={"a": "ü"}, tool_choice={"type": "function", "name": "f"}
    )
    assert note_of(note.text()) == note
    for other in ("", "a title", "{}", '{"created": 5, "model": "m", "other": 1}'):
        assert note_of(other) is None
