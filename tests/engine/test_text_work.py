"""Long texts delay no other caller, wait in turn, and are bounded."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from orchestrator.errors import OverloadedError
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.turns.text_work import MOST_WAITING, SHORT, TextWork
from slipstream.hosting.tokenizer_files import embedded_directory

TOKENIZER = Path(embedded_directory("target")) / "tokenizer.json"


async def test_the_event_loop_goes_on_while_a_long_text_is_tokenized() -> None:
    """The library has to release Python's lock. Its plain `encode` does not, and the loop would not
    turn at all."""
    codec, text = Codec(TOKENIZER.read_bytes(), {}, None), "How do I use asyncio.Queue in a program? " * 20_000
    work = asyncio.create_task(TextWork().run(len(text), partial(codec.encode_text, text)))
    turns = 0
    while not work.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 10
    assert len(work.result()) > 100_000


def test_the_same_tokens_as_by_the_plain_way() -> None:
    codec, tokenizer = Codec(TOKENIZER.read_bytes(), {}, None), Tokenizer.from_file(str(TOKENIZER))
    for text in (
        "",
        "x",
        "How do I\n\tuse it?",
        "\N{GREEK SMALL LETTER ALPHA}\N{GRINNING FACE}\u0000",
        "<|im_end|>user",
    ):
        assert codec.encode_text(text) == tokenizer.encode(text).ids
        assert codec.encode_rendered(text) == tokenizer.encode(text, add_special_tokens=False).ids


async def test_short_texts_wait_for_no_long_one_and_long_ones_for_no_more_than_a_bound() -> None:
    texts, finish = TextWork(), threading.Event()
    first = asyncio.create_task(texts.run(MOST_WAITING, finish.wait))
    await asyncio.sleep(0)
    for length in (SHORT + 1, MOST_WAITING):
        with pytest.raises(OverloadedError) as caught:
            await texts.run(length, finish.wait)
        assert caught.value.retry_after
        assert caught.value.metadata == {"limit": "text"}
    assert await texts.run(SHORT, lambda: "done") == "done"
    finish.set()
    assert await first
    assert await texts.run(MOST_WAITING, lambda: "room again") == "room again"


async def test_a_middling_text_does_not_wait_for_a_long_one() -> None:
    texts, finish = TextWork(), threading.Event()
    long = asyncio.create_task(texts.run(1_000_000, finish.wait))
    await asyncio.sleep(0)
    assert await texts.run(SHORT + 1, lambda: "done") == "done"
    assert not long.done()
    finish.set()
    await long


async def test_a_caller_that_leaves_takes_its_text_along() -> None:
    texts, finish, begun = TextWork(), threading.Event(), threading.Event()
    running = asyncio.create_task(texts.run(MOST_WAITING // 2, finish.wait))
    waiting = asyncio.create_task(texts.run(MOST_WAITING // 2, begun.set))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    finish.set()
    assert await running
    assert await texts.run(MOST_WAITING, lambda: "all of it") == "all of it"
    assert not begun.is_set()
