"""A token's bytes: those of several are the text that a client reads."""

# ruff: noqa: RUF001 (texts have full-width characters)

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

import pytest

from orchestrator.contract.events import turn_event
from orchestrator.errors import NotReadyError
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.turn_limits import Commit, FinishReason
from orchestrator.sessions.turns.statistics import TurnStatistics
from orchestrator.sessions.turns.turn_record import TurnEnded, TurnRecord, TurnStarted
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.token_spelling import token_bytes
from tests.engine.test_tokenizing import FILES, pair_with
from tests.tokenizer_models import CASES, TokenizerCase

TEXTS = (
    "Hello there, how are you?  Two spaces.",
    "naïve café Größe",
    "你好，世界！ Привет",
    "🙂👩‍👩‍👧\n\tend\ufffd",
)
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@cache
def embedded() -> Codec:
    return Codec.from_files(FILES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_bytes_of_a_texts_tokens_are_the_text_that_they_decode_to(case: TokenizerCase) -> None:
    tokenizer = case.build()
    context = tokenizer.encode("a", add_special_tokens=False).ids
    before = tokenizer.decode(context, skip_special_tokens=False)
    for text in TEXTS:
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        spelt = b"".join(token_bytes(tokenizer, context, token) for token in tokens)
        assert (
            spelt.decode(errors="replace")
            == tokenizer.decode([*context, *tokens], skip_special_tokens=False)[len(before) :]
        )


def test_a_token_that_is_a_part_of_a_character_has_its_byte() -> None:
    codec = embedded()
    tokens = codec.encode_text("🙂")
    spelt = [codec.token_bytes(token) for token in tokens]
    assert len(spelt) > 1 and b"".join(spelt) == "🙂".encode()
    assert codec.text_with_special_tokens(tokens[:1]) == "\ufffd", "which its text does not tell"


def test_a_special_token_has_its_name_and_padding_nothing() -> None:
    codec = embedded()
    (end,) = codec.encode_rendered("<|im_end|>")
    assert codec.token_bytes(end) == b"<|im_end|>"
    assert codec.token_bytes(codec.tokenizer.get_vocab_size() + 5) == b""


@pytest.mark.parametrize("error", [None, NotReadyError("no")], ids=["finished", "failed"])
def test_a_turns_last_event_tells_the_weights_that_chose_its_tokens(error: Exception | None) -> None:
    pair = pair_with("")
    event = turn_event(1, TurnEnded(FinishReason.STOP_STRING, 1, 0, 1, TurnStatistics(), "", error, "x"), pair)
    end = event.finished if error is None else event.failed
    assert (end.weights_fingerprint, end.sampling_version) == (
        pair.target.weights_fingerprint,
        pair.target.sampling_version,
    )
    assert end.weights_fingerprint and end.sampling_version
    assert event.finished.stop_string == ("x" if error is None else "")


@pytest.mark.parametrize("asked", [False, True])
def test_log_probabilities_go_with_bytes_if_asked_for(asked: bool) -> None:
    pair = pair_with(FILES["chat_template.jinja"].decode())
    codec = pair.codec
    first, second, third = codec.encode_text("🙂")[:1] + codec.encode_text("hello world")[-2:]
    record = TurnRecord(1, TurnStarted("s", "", 7, 3), tells_token_bytes=asked)
    scored = TokenLogprobs(first, -0.5, ((second, -1.0), (third, -2.0)))
    record.add(Commit((first,), ("",), None), (), [scored], [TokenLogprobs(second, -3.0)])
    delta = record.after(0)
    assert delta is not None
    message = turn_event(1, delta, pair).delta
    (entry,), (prompt,) = message.logprobs, message.prompt_logprobs
    assert (entry.token_id, entry.logprob, [top.token_id for top in entry.top]) == (first, -0.5, [second, third])
    got = [entry.token_bytes, *(top.token_bytes for top in entry.top), prompt.token_bytes]
    wanted = [codec.token_bytes(token) for token in (first, second, third, second)]
    assert got == (wanted if asked else [b""] * 4)
