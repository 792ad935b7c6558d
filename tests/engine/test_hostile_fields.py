"""Every field that comes from outside is understood or refused by name, in bounded time: the code
that parses requests raises nothing else.

Messages come from `proving.hostile.fields`, whose choices hypothesis makes here, so that what fails
is made small.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.message import Message as ProtobufMessage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.contract import commands, tokens
from orchestrator.contract.settings import settings_message, settings_of
from orchestrator.errors import PromptTooLongError
from orchestrator.sessions.admission.principal import ANONYMOUS
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.detokenizer import Detokenizer
from orchestrator.sessions.conversation.messages import Message
from orchestrator.sessions.conversation.resolving import ModelLimits, resolve_settings
from orchestrator.sessions.durability.payloads import TurnPayload, turn_payload_of, turn_row
from orchestrator.sessions.entrance.chat_commands import BadCommand
from proving.hostile.fields import STRUCTURE_SOURCES, FieldSource
from proving.hostile.requests import SERVICES, Belongings, Requests
from slipstream.errors import InvalidFieldsError, SlipstreamError
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from slipstream.rpc.sampling_wire import distribution_of, rule_message, rule_of
from slipstream.rpc.status import error_of, status_of
from slipstream.sampling.outcome import distribution_fault
from slipstream.sampling.rule import SamplingDefaults
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling.structure_compiler import StructureCompiler
from slipstream.telemetry.tracing import context_of
from slipstream.v1 import generation_pb2
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.wire.v1 import rule_pb2

LIMITS = ModelLimits(2048, 4096, (0, 2), SamplingDefaults(), None, 64, 512)
FILES = load_tokenizer_files(str(embedded_directory("target"))).files
CODEC = Codec.from_files(FILES)
CLOCK = datetime(2026, 11, 23, tzinfo=UTC)
COMPILE_SECONDS = 120.0
"""Of a structure at worst, on a slow machine with much else to do."""

often = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
choices = st.randoms(use_true_random=False)

PARSERS: list[tuple[type[ProtobufMessage], Callable[[Any], object]]] = [
    (pb.GenerateRequest, lambda request: commands.generation_of(request, ANONYMOUS)),
    (pb.CreateSessionRequest, lambda request: commands.session_of(request, ANONYMOUS)),
    (pb.SendMessageRequest, lambda request: commands.message_of(request, ANONYMOUS)),
    (pb.ForkSessionRequest, commands.fork_of),
    (pb.ListSessionsRequest, commands.page_size_of),
    (pb.ListSessionsRequest, lambda request: commands.cursor_of(request.page_token)),
    (pb.GetTurnTracesRequest, commands.turn_count_of),
    (pb.TokenizeRequest, tokens.tokenization_of),
    (pb.DetokenizeRequest, tokens.tokens_of),
    (rule_pb2.SamplingRule, lambda message: rule_of(message, LIMITS.vocabulary_size)),
    (rule_pb2.TokenDistribution, lambda message: distribution_fault(5, distribution_of(message), 2048)),
    (pb.UserMessage, lambda message: context_of(message.traceparent)),
]


def drawn(kind: type[ProtobufMessage], rng: random.Random) -> Any:
    message = kind()
    FieldSource(rng, ["deadbeef" * 4]).arbitrary(message)
    return message


def refused_or(work: Callable[[], object]) -> object:
    """Return the outcome; None if it was refused. The refusal has a status that says the same."""
    try:
        return work()
    except SlipstreamError as caught:
        error = caught
    told = error_of(status_of(error))
    assert (told.code, told.reason) == (error.code, error.reason)
    return None


@pytest.mark.parametrize(("kind", "parse"), PARSERS, ids=[kind.__name__ for kind, _ in PARSERS])
def test_every_message_is_understood_or_refused(kind: type[ProtobufMessage], parse: Callable[[Any], object]) -> None:
    @often
    @given(choices)
    def check(rng: random.Random) -> None:
        message = drawn(kind, rng)
        refused_or(lambda: parse(message))

    check()


@often
@given(choices)
def test_a_chats_bad_command_is_one_that_says_why(rng: random.Random) -> None:
    command = commands.command_of(drawn(pb.ChatRequest, rng), lambda: ANONYMOUS)
    if isinstance(command, BadCommand):
        assert error_of(status_of(command.error)).reason == command.error.reason


@often
@given(choices, st.integers(1, 5000))
def test_settings_that_are_taken_are_kept_as_they_were_said(rng: random.Random, length: int) -> None:
    asked = refused_or(lambda: settings_of(drawn(generation_pb2.GenerationSettings, rng)))
    if asked is None:
        return
    assert settings_of(settings_message(asked)) == asked or repr(asked).count("nan")
    resolved: Any = refused_or(lambda: resolve_settings(asked, length, LIMITS))
    if resolved is None:
        return
    assert (
        rule_of(rule_message(resolved.terms.rule, LIMITS.vocabulary_size), LIMITS.vocabulary_size)
        == resolved.terms.rule
    )
    payload = TurnPayload("", resolved, "")
    assert turn_payload_of(turn_row(1, ("", b""), 0, [], payload)) == payload


@often
@given(choices)
def test_requests_of_every_method_are_drawn_the_same_from_the_same_seed(rng: random.Random) -> None:
    seed = rng.randrange(2**32)
    for service in SERVICES:
        for method in service.methods:
            once, again = (Requests(random.Random(seed), Belongings()).draw(method) for _ in range(2))
            assert once == again


def compiled(kind: StructureKind, source: str) -> None:
    started = time.monotonic()
    compiler = StructureCompiler(FILES["tokenizer.json"], 2048, (0,))
    refused_or(lambda: compiler.validate(Structure(kind, source)))
    assert time.monotonic() - started < COMPILE_SECONDS


@pytest.mark.parametrize("kind", StructureKind)
def test_structures_compile_or_are_refused(kind: StructureKind) -> None:
    for source in STRUCTURE_SOURCES:
        compiled(kind, source)


@often
@given(st.text(max_size=200), st.lists(st.text(max_size=3), max_size=3), st.booleans())
def test_any_text_goes_to_tokens_and_comes_back_in_pieces(text: str, stops: list[str], include: bool) -> None:
    rendered = CODEC.render([Message("user", text)], CLOCK)
    assert text.strip() in rendered or not text.strip()
    tokens = CODEC.encode_text(text)
    detokenizer = Detokenizer(CODEC, [stop for stop in stops if stop], include_stop=include)
    said = ""
    for token in tokens:
        piece, stopped = detokenizer.push(token)
        said += piece
        if stopped:
            return
    assert said + detokenizer.flush() == CODEC.decode(tokens)


@often
@given(st.lists(st.integers(0, LIMITS.vocabulary_size - 1), max_size=60))
def test_any_tokens_come_back_in_pieces(tokens: list[int]) -> None:
    known = [token for token in tokens if token < CODEC.tokenizer.get_vocab_size()]
    detokenizer = Detokenizer(CODEC, ())
    pieces = [detokenizer.push(token)[0] for token in known]
    assert "".join(pieces) + detokenizer.flush() == CODEC.decode(known)


def test_a_prompt_without_room_is_refused_by_its_length() -> None:
    with pytest.raises(PromptTooLongError):
        resolve_settings(settings_of(generation_pb2.GenerationSettings()), LIMITS.context_length, LIMITS)


@pytest.mark.parametrize("session_id", ["a\0b", "\0", ""], ids=["NUL inside", "NUL", "nothing"])
def test_a_page_that_no_list_has_ended_with_is_refused(session_id: str) -> None:
    """The first two no database looks for: PostgreSQL refuses them, and the store would seem to be
    away."""
    with pytest.raises(InvalidFieldsError, match="page_token"):
        commands.cursor_of(commands.page_token((1, session_id)))
