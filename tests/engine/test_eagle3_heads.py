"""An EAGLE-3 head over pages guesses what its layout's plain computation says, for any steps of its
target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slipstream.engine.heads.eagle3 import LONGEST_CHAIN, Eagle3Heads
from slipstream.engine.heads.eagle3_config import Eagle3Config
from slipstream.engine.heads.eagle3_loading import load_eagle3, read_eagle3
from slipstream.engine.heads.files import HeadTarget, read_config
from slipstream.engine.hidden_heads import Settled
from slipstream.engine.sequence import PageCopy
from slipstream.sampling.choose import choose
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from tests.eagle3_heads import HIDDEN, LAYERS, OFFSETS, SHAPE, VOCABULARY, Weights, plain_chain, write_random

PAGE = 4
GREEDY = SamplingRule()


class States:
    """Hidden states as a backend would give them."""

    hidden_size, layer_count = HIDDEN, LAYERS

    def __init__(self) -> None:
        self.layers: Sequence[int] = ()
        self.rows = np.empty((0, 0), np.float32)

    def tap(self, layers: Sequence[int] = ()) -> None:
        self.layers = layers

    def last(self) -> np.ndarray:
        raise AssertionError("EAGLE-3 does not read them")

    def tapped(self) -> np.ndarray:
        return self.rows


class Text:
    """A sequence's tokens, and the states that its target has at each."""

    def __init__(self, length: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.tokens = rng.integers(0, VOCABULARY, length).tolist()
        self.states = rng.normal(0, 1, (length, 3 * HIDDEN)).astype(np.float32)


def loaded(directory: Path) -> tuple[Eagle3Heads, States, Eagle3Config, Weights]:
    states = States()
    facts: Any = SimpleNamespace(vocabulary_size=VOCABULARY)
    values = read_config(directory)
    heads = load_eagle3(directory, values, HeadTarget(facts, states, None))
    heads.reserve(20, PAGE)
    stored = read_eagle3(directory, values, SHAPE, None)
    weights = stored.weights | {OFFSETS: stored.target_ids - np.arange(len(stored.target_ids))}
    return heads, states, stored.config, weights


def settle(states: States, texts: list[tuple[Text, range, list[int], int]], spoilt: int = 0) -> list[Settled]:
    """Give the states of a step: of each text some rows, its pages and how much to guess; behind
    each some rows of wrong hint tokens."""
    rows, settled, first = [], [], 0
    for text, part, pages, most in texts:
        rows += [text.states[part.start : part.stop], np.full((spoilt, 3 * HIDDEN), 9.0, np.float32)]
        tokens = text.tokens[: part.stop + 1]
        settled.append(Settled(first, len(part), -1, part.start, pages, tokens, GREEDY, most))
        first += len(part) + spoilt
    states.rows = np.concatenate(rows)
    return settled


def expected(config: Eagle3Config, weights: Weights, text: Text, length: int, count: int) -> tuple[list[int], float]:
    logits = plain_chain(config, weights, text.states[:length], text.tokens[: length + 1], count)
    ids = np.arange(config.draft_vocabulary_size) + weights[OFFSETS]
    first = np.exp(logits[0] - logits[0].max())
    return [int(ids[each.argmax()]) for each in logits], float(first.max() / first.sum())


VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": False},
    {"norm_before_fc": True, "norm_output": True},
    {"fc_norm": True},
    {"layer": {"model_type": "qwen3"}},
    {"draft_vocab_size": VOCABULARY, "layer": {"num_key_value_heads": 4}},
]


@pytest.fixture(autouse=True)
def _long_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.engine.heads.eagle3.LEAST_SURVIVAL", 0.0)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_guesses_are_those_of_the_plain_computation(tmp_path: Path, changes: dict[str, Any]) -> None:
    heads, states, config, weights = loaded(write_random(tmp_path, **changes))
    text = Text(30, seed=1)
    pages = [3, 7, 1, 9, 2, 5, 8, 4]
    for part in (range(13), range(13, 14), range(14, 19)):  # a prompt, a step, a step with right hints
        (guess,) = heads.guess(settle(states, [(text, part, pages, 5)], spoilt=2))
        tokens, odds = expected(config, weights, text, part.stop, 5)
        assert list(guess.tokens) == tokens, part
        assert guess.survivals[0] == pytest.approx(odds, rel=1e-3)
        assert list(guess.survivals) == sorted(guess.survivals, reverse=True)


def test_a_batch_guesses_as_each_text_alone(tmp_path: Path) -> None:
    heads, states, config, weights = loaded(write_random(tmp_path))
    texts = [Text(20, seed=seed) for seed in range(3)]
    pages = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]]
    heads.guess(settle(states, [(text, range(9), own, 0) for text, own in zip(texts, pages, strict=True)]))
    parts = [range(9, 10), range(9, 14), range(9, 12)]
    asked = [(text, part, own, most) for text, part, own, most in zip(texts, parts, pages, (4, 0, 2), strict=True)]
    guesses = heads.guess(settle(states, asked, spoilt=1))
    assert [len(guess.tokens) for guess in guesses] == [4, 0, 2]
    for text, part, guess, count in zip(texts, parts, guesses, (4, 0, 2), strict=True):
        if count:
            assert list(guess.tokens) == expected(config, weights, text, part.stop, count)[0]


def test_a_copied_page_is_as_good_as_the_first(tmp_path: Path) -> None:
    heads, states, config, weights = loaded(write_random(tmp_path))
    text = Text(20, seed=4)
    heads.guess(settle(states, [(text, range(10), [1, 2, 3], 0)]))
    heads.copy_pages([PageCopy(3, 17)])
    (guess,) = heads.guess(settle(states, [(text, range(10, 11), [1, 2, 17], 3)]))
    assert list(guess.tokens) == expected(config, weights, text, 11, 3)[0]


def test_positions_of_another_text_are_not_attended_to(tmp_path: Path) -> None:
    """A page that another sequence has used, and positions whose steps the heads did not see."""
    heads, states, config, weights = loaded(write_random(tmp_path))
    other, text = Text(20, seed=5), Text(20, seed=6)
    heads.guess(settle(states, [(other, range(16), [1, 2, 3, 4], 0)]))
    (guess,) = heads.guess(settle(states, [(text, range(16, 17), [1, 2, 3, 4, 5], 1)]))
    # The first row alone: as if the text had but one position, whose turn cancels out.
    alone = Text(2, seed=0)
    alone.states[0], alone.tokens = text.states[16], text.tokens[16:18]
    same = [at for at in range(16) if other.tokens[at + 1] == text.tokens[at + 1]]
    assert not same, "the texts must differ everywhere for this test"
    assert list(guess.tokens) == expected(config, weights, alone, 1, 1)[0]


def test_nothing_follows_an_end_token_and_no_guess_is_endless(tmp_path: Path) -> None:
    heads, states, _, _ = loaded(write_random(tmp_path))
    text = Text(20, seed=8)
    (settled,) = settle(states, [(text, range(9), [1, 2, 3], 64)])
    (guess,) = heads.guess([settled])
    assert len(guess.tokens) == LONGEST_CHAIN
    end = guess.tokens[1]
    (guess,) = heads.guess([settled._replace(rule=SamplingRule(end_token_ids=(end,)))])
    assert guess.tokens.index(end) == len(guess.tokens) - 1


def test_a_sampled_guess_has_the_targets_noise(tmp_path: Path) -> None:
    """The guess is the choice that the target's rule makes of the head's own logits."""
    heads, states, config, weights = loaded(write_random(tmp_path))
    text = Text(20, seed=9)
    logits = plain_chain(config, weights, text.states[:12], text.tokens[:13], 1)[0]
    whole = np.full((1, VOCABULARY), -np.inf, np.float32)
    whole[0, np.arange(40) + weights[OFFSETS]] = logits
    found = set()
    for seed in range(12):
        rule = SamplingRule(temperature=1.0, seed=seed)
        (settled,) = settle(states, [(text, range(12), [1, 2, 3], 1)])
        (guess,) = heads.guess([settled._replace(rule=rule)])
        assert guess.tokens == (choose(whole, [Row(rule, 13)])[0].token,)
        found |= {*guess.tokens}
    assert len(found) > 1
