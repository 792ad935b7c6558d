"""What is wrong with a prompt's text is told by the path of the field that the caller wrote."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tokenizers import Tokenizer

from orchestrator.rounds.drafts import Drafts
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.messages import Message, from_user
from orchestrator.sessions.conversation.next_prompt import next_prompt
from orchestrator.sessions.conversation.session import AnswerTokens, Session
from orchestrator.sessions.turns.pair import Conversation, Pair
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from slipstream.structures.trials import StructureTrials
from tests.scripted_peers import MODEL, Draft, Verifier, rounds_over

FILES = load_tokenizer_files(str(embedded_directory("target"))).files
NOW = datetime(2026, 3, 1, tzinfo=UTC)
IMAGE = "<image_soft_token>"


def pair(template: str = FILES["chat_template.jinja"].decode()) -> Pair:
    """Its model has no row for the placeholder of an image, which its tokenizer knows."""
    tokenizer = Tokenizer.from_buffer(FILES["tokenizer.json"])
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([IMAGE])
    codec = Codec(tokenizer.to_str().encode(), json.loads(FILES["tokenizer_config.json"]), template)
    model = replace(MODEL, vocabulary_size=size, context_length=4096)
    structures = StructureTrials(FILES["tokenizer.json"], size, model.end_token_ids)
    return Pair(model, Drafts(), codec, rounds_over(Draft(), Verifier()), structures, 0, 8)


def session(served: Pair, system: str | None, *said: str) -> Session:
    """Messages by turns of a user and the model, after a system message."""
    opened = Session("s", served.codec, NOW, system)
    for index, text in enumerate(said):
        opened.messages.append(Message(("user", "assistant")[index % 2], text))
        if index % 2:
            opened.answers.append(AnswerTokens(tuple(served.codec.encode_rendered(text)), ended_with_end_token=False))
    return opened


async def fields(served: Pair, prompt: Any) -> list[str]:
    with pytest.raises(InvalidFieldsError) as caught:
        await served.encode(prompt, NOW)
    return [violation.field for violation in caught.value.violations]


async def test_a_placeholder_without_an_embedding_is_refused_where_it_was_written() -> None:
    served = pair()
    said = Conversation((Message("user", "a"), Message("assistant", "b"), Message("user", f"see {IMAGE}")))
    assert await fields(served, f"see {IMAGE}") == ["text"]
    assert await fields(served, said) == ["conversation.messages[2].content"]
    assert await fields(served, next_prompt(session(served, None, "a", "b"), from_user(IMAGE))) == ["content"]
    assert await fields(served, next_prompt(session(served, f"You see {IMAGE}."), from_user("a"))) == ["system"]
    with pytest.raises(InvalidFieldsError, match=f"must not have the token {IMAGE}: the model has no embedding for it"):
        await served.encode(IMAGE, NOW)


async def test_a_message_that_a_template_leaves_out_or_refuses_is_told_where_it_was_written() -> None:
    last = pair("<{{ messages[-1].content }}>")
    said = Conversation((Message("system", "one"), Message("user", "two")))
    assert await fields(last, said) == ["conversation.messages[0].content"]
    assert await fields(last, next_prompt(session(last, "one"), from_user("two"))) == ["system"]
    earlier = ["messages[0].content", "messages[1].content"]
    assert await fields(last, next_prompt(session(last, None, "one", "b"), from_user("two"))) == earlier
    strict = pair("{{ raise_exception('no') }}")
    assert await fields(strict, said) == ["conversation.messages"]
    assert await fields(strict, next_prompt(session(strict, None), from_user("two"))) == ["content"]


async def test_a_template_is_never_rendered_on_the_event_loop() -> None:
    """Raw prompts are encoded while one runs until its limit."""
    slow = pair("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    chat = asyncio.create_task(slow.encode(Conversation((Message("user", "a"),)), NOW))
    count = 0
    while not chat.done():
        assert await slow.encode("hello", NOW) == slow.codec.encode_text("hello")
        await asyncio.sleep(0.01)
        count += 1
    assert chat.exception() is not None
    assert count > 10
