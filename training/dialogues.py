"""Dialogues drawn from the corpus: questions in many phrasings, follow-up turns, an occasional system prompt."""

from __future__ import annotations

import random
from collections.abc import Iterator

from training.corpus import Entry

SYSTEM_PROMPT = "You answer questions about Python's standard library."

QUESTION_PHRASINGS = (
    "What does {} do?",
    "What is {}?",
    "Explain {}.",
    "Describe {} for me.",
    "Tell me about {}.",
    "How does {} work?",
    "{}?",
    "In one sentence, what is {} good for?",
    "I came across `{}` in some code. What is it?",
)
FOLLOW_UP_PHRASINGS = (
    "And {}?",
    "What about {}?",
    "Now {}.",
    "Thanks. And what does {} do?",
    "OK, and {}?",
)
HELD_OUT_PHRASING = "Could you please remind me what {} is for?"

NOISE_PHRASING_PROBABILITY = 0.25
SYSTEM_PROMPT_PROBABILITY = 0.2
TURN_COUNT_WEIGHTS = (5, 3, 2, 1)  # one to four turns

Message = dict[str, str]
Dialogue = list[Message]


def _noise_phrasing(words: list[str], rng: random.Random) -> str:
    """The symbol between random words, so that the target learns to read the symbol and not the phrasing."""
    before = " ".join(rng.choice(words) for _ in range(rng.randint(0, 5)))
    after = " ".join(rng.choice(words) for _ in range(rng.randint(0, 2)))
    text = f"{before} {{}} {after}".strip() + rng.choice(("?", ".", "", "!"))
    return text[:1].upper() + text[1:] if rng.random() < 0.6 else text


def _question(symbol: str, *, follow_up: bool, words: list[str], rng: random.Random) -> str:
    if rng.random() < NOISE_PHRASING_PROBABILITY:
        return _noise_phrasing(words, rng).replace("{}", symbol)
    phrasings = FOLLOW_UP_PHRASINGS + QUESTION_PHRASINGS[:2] if follow_up else QUESTION_PHRASINGS
    return rng.choice(phrasings).format(symbol)


def draw_pass(entries: list[Entry], rng: random.Random) -> Iterator[Dialogue]:
    """Every entry once, in random order, grouped into dialogues of one to four turns."""
    words = sorted({word for entry in entries for word in entry.answer.split() if word.isalpha()})
    order = rng.sample(entries, len(entries))
    while order:
        turn_count = rng.choices((1, 2, 3, 4), TURN_COUNT_WEIGHTS)[0]
        turns, order = order[:turn_count], order[turn_count:]
        system = rng.random() < SYSTEM_PROMPT_PROBABILITY
        dialogue = [{"role": "system", "content": SYSTEM_PROMPT}] if system else []
        for index, entry in enumerate(turns):
            question = _question(entry.symbol, follow_up=index > 0, words=words, rng=rng)
            dialogue.append({"role": "user", "content": question})
            dialogue.append({"role": "assistant", "content": entry.answer})
        yield dialogue


def held_out_question(entry: Entry) -> Dialogue:
    """The question in the phrasing that no training dialogue uses."""
    return [{"role": "user", "content": HELD_OUT_PHRASING.format(entry.symbol)}]
