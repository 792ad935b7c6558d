"""Warm-up turns before a process reports that it is healthy. The first client must not wait for
code that runs for the first time, here or on the peers."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from itertools import product

from orchestrator.rounds.note import RoundNote
from orchestrator.sessions.conversation.codec import ChatTemplateBrokenError, Message, NoChatTemplateError
from orchestrator.sessions.conversation.detokenizer import Detokenizer
from orchestrator.sessions.conversation.settings import ADAPTIVE, GenerationSettings
from orchestrator.sessions.turns.pair import Conversation, Pair
from slipstream.errors import InvalidFieldsError, SlipstreamError

log = logging.getLogger(__name__)

_SECONDS = 2.0
"""Longest time of a warm-up."""
_TEXTS = "Hello!", "What can you do?", "Thank you!", "Why is that?", "Go on.", "And what else?"
_SETTINGS = (
    GenerationSettings(temperature=0.0, max_token_count=24, draft_length=ADAPTIVE),
    GenerationSettings(temperature=0.8, seed=0, max_token_count=24, draft_length=8),
)


async def warm_up(pair: Pair) -> None:
    """Run turns without a client. They are in no trace, and in no count but a draft's count of its
    tokens.

    Raises nothing: a peer that fails here is noticed when it is needed.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            for text, settings in product(_TEXTS, _SETTINGS):
                await _turn(pair, text, settings)
    except TimeoutError:
        log.debug("warming up was cut after %g s", _SECONDS)
    except (
        SlipstreamError
    ) as error:  # a draft of another tokenizer, a context of a few tokens: reported when it matters
        log.info("warming up ended early: %s", error)
    except Exception:
        log.warning("warming up failed", exc_info=True)


async def _turn(pair: Pair, text: str, settings: GenerationSettings) -> None:
    tokens = await _encoded(pair, text)
    resolved = pair.resolve_settings(settings, len(tokens))
    room, end_token_ids = resolved.room(len(tokens)), pair.target.end_token_ids
    rounds, detokenizer = pair.rounds.open("warm-up"), Detokenizer(pair.codec, ())
    pair.rounds.begin_turn(rounds, 0, recompute=False)
    generated: list[int] = []
    try:
        while room > len(generated) and not set(generated) & set(end_token_ids):
            note = RoundNote(1, len(tokens), asyncio.get_running_loop().time())
            result = await pair.rounds.run(rounds, tokens, resolved.terms, room - len(generated), note)
            for token in result.tokens:
                detokenizer.push(token)
            generated += result.tokens
            tokens += result.tokens
    finally:
        pair.rounds.release(rounds)  # no end: sessions that share n-grams must not get these


async def _encoded(pair: Pair, text: str) -> list[int]:
    now = datetime.now(UTC)
    try:
        return await pair.encode(Conversation((Message("user", text),)), now)
    except (NoChatTemplateError, ChatTemplateBrokenError, InvalidFieldsError):  # the template may want other messages
        return await pair.encode(text, now)
