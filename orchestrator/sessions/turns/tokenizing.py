"""Text to tokens and back, without a turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from orchestrator.sessions.turns.pair import Conversation, Pair
from slipstream.errors import FieldViolation, InvalidFieldsError

MAX_DETOKENIZED = 2**18
"""Most token ids of one request for their text. A token may have more than a hundred characters."""


@dataclass(frozen=True, slots=True)
class Tokenization:
    """A request for the tokens of a text or a conversation."""

    prompt: str | Conversation
    clock: datetime | None = None
    """Time that the chat template reads; None: now."""
    add_special_tokens: bool = True
    """True to add the special tokens that the tokenizer puts around a text."""
    token_strings: bool = False
    """True to return each token's string."""


async def tokenize(pair: Pair, asked: Tokenization, now: datetime) -> tuple[list[int], list[str]]:
    """Return the tokens that a generation would begin with, and their strings if asked for. Raises
    what `Pair.encode` raises."""
    if isinstance(asked.prompt, Conversation) or asked.add_special_tokens:
        tokens = await pair.encode(asked.prompt, asked.clock or now)
    else:
        tokens = await pair.encode_bare(asked.prompt)
    if not asked.token_strings:
        return tokens, []
    return tokens, await pair.text_work.run(len(tokens), partial(pair.codec.strings_of, tokens))


async def detokenize(pair: Pair, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
    """Return the text of tokens. InvalidFieldsError for a token that the model does not know;
    OverloadedError."""
    size = pair.target.vocabulary_size
    index = next((index for index, token in enumerate(tokens) if not 0 <= token < size), None)
    if index is not None:
        what = f"must be from 0 to {size - 1}, but is {tokens[index]}"
        raise InvalidFieldsError([FieldViolation(f"token_ids[{index}]", what)])
    work = partial(pair.codec.text_of, tokens, skip_special_tokens=skip_special_tokens)
    return await pair.text_work.run(len(tokens), work)
