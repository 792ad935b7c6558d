"""Prompts from the embedded corpus: questions, conversations that share long beginnings, raw text,
random tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tokenizers import Tokenizer

from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.hosting.tokenizer_json import TOKENIZER_FILE
from training import corpus
from training.corpus import Entry
from training.dialogues import FOLLOW_UP_PHRASINGS, QUESTION_PHRASINGS, Message, draw_pass

VOCABULARY_SIZE = 4096
FIRST_ORDINARY_TOKEN = 3
SHARED_CONVERSATION_COUNT = 24
"""Number of shared conversations. It is small, so that many prompts of a cell begin alike and share
pages."""

_KIND_WEIGHTS = {"question": 36, "conversation": 34, "text": 14, "random": 13, "long": 3}


class PromptSource:
    """Draws prompts as token ids. The same seed gives the same prompts, and a longer draw begins
    with the shorter one."""

    def __init__(self, seed: int) -> None:
        directory = embedded_directory("target")
        self._tokenizer = Tokenizer.from_file(str(directory / TOKENIZER_FILE))
        self._rng = random.Random(f"prompts {seed}")
        self._entries = corpus.read(directory.parent / "symbols.jsonl")
        dialogues = [dialogue for dialogue in draw_pass(self._entries, self._rng) if len(dialogue) >= 4]
        self._shared = dialogues[:SHARED_CONVERSATION_COUNT]

    def draw(self, count: int) -> list[list[int]]:
        """Draw ``count`` prompts, from one token to several prefill chunks long."""
        return [self._draw_one() for _ in range(count)]

    def _draw_one(self) -> list[int]:
        rng = self._rng
        (kind,) = rng.choices(list(_KIND_WEIGHTS), list(_KIND_WEIGHTS.values()))
        if kind == "random":
            length = rng.choice((1, rng.randint(2, 40), rng.randint(2, 40), rng.randint(40, 200)))
            return [rng.randrange(FIRST_ORDINARY_TOKEN, VOCABULARY_SIZE) for _ in range(length)]
        if kind == "text":
            tokens = self._encode(rng.choice(self._entries).answer)
            return tokens[: rng.randint(1, len(tokens))]
        if kind == "question":
            return self._encode(_rendered([self._question(QUESTION_PHRASINGS)]))
        if kind == "long":  # one shared conversation after another
            begun = [message for dialogue in rng.sample(self._shared, 3) for message in dialogue]
            return self._encode(_rendered([*begun, self._question(FOLLOW_UP_PHRASINGS)]))
        dialogue = rng.choice(self._shared)
        users = [index for index, message in enumerate(dialogue) if message["role"] == "user"]
        begun = dialogue[: rng.choice([*users[1:], len(dialogue)])]
        return self._encode(_rendered([*begun, self._question(FOLLOW_UP_PHRASINGS)]))

    def _question(self, phrasings: Sequence[str]) -> Message:
        entry: Entry = self._rng.choice(self._entries)
        return {"role": "user", "content": self._rng.choice(phrasings).format(entry.symbol)}

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _rendered(messages: list[Message]) -> str:
    """Return the embedded pair's chat template with the header that makes the model answer."""
    turns = (f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return "".join(turns) + "<|im_start|>assistant\n"
