"""Trees of candidates that a draft would have offered at each position of a target's own text.

A node is a token after its parent's. Its *odds* say how likely the target chooses it if all before
it are right, its *survival* is the product down to it. The odds are calibrated on the same text by
rank and by what the draft states, so they are better than any that a service can know.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

from draft_service.outcomes import Candidates, odds_of
from slipstream.sampling.choose import choose
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule

CANDIDATES = 8
"""Choices of the draft at each position that a tree may hold."""

_BINS = 12
_PRIOR = 4.0
"""Outcomes that a bin is taken to have had as its draft states them."""


class Node(NamedTuple):
    """A token of a tree."""

    survival: float
    depth: int
    """1 for the first token."""
    parent: int
    """Index of the node before it, -1 for none."""
    is_first: bool
    """True if it and all before it are the draft's own first choices: then it is of the chain."""
    is_right: bool
    """True if the target chose it and all before it."""


@dataclass(slots=True)
class Text:
    """A prompt with the tokens that the target chose after it, and how it chose them."""

    tokens: list[int]
    prompt_length: int
    rule: SamplingRule


class Outcomes:
    """Count of how often the target chose a draft's candidate, by its rank and its stated odds."""

    def __init__(self) -> None:
        self._right: dict[tuple[int, int], float] = defaultdict(float)
        self._stated: dict[tuple[int, int], float] = defaultdict(float)
        self._count: dict[tuple[int, int], float] = defaultdict(float)

    def record(self, rank: int, odds: float, is_right: bool) -> None:
        """Take in one candidate at a position."""
        key = rank, _bin(odds)
        self._right[key] += is_right
        self._stated[key] += odds
        self._count[key] += 1

    def odds(self, rank: int, odds: float) -> float:
        """Return the share of such candidates that the target chose."""
        key = rank, _bin(odds)
        stated = self._stated[key] / self._count[key] if self._count[key] else odds
        return (self._right[key] + _PRIOR * stated) / (self._count[key] + _PRIOR)

    def share(self, rank: int) -> float:
        """Return the share of positions at which the candidate of a rank was right."""
        count = sum(count for (of, _), count in self._count.items() if of == rank)
        return sum(right for (of, _), right in self._right.items() if of == rank) / max(1.0, count)


def _bin(odds: float) -> int:
    """Return a bin whose bounds are even in log-odds."""
    odds = min(max(odds, 1e-4), 1 - 1e-4)
    return max(-_BINS, min(_BINS, round(1.5 * math.log(odds / (1 - odds)))))


def candidates_of(logits: torch.Tensor, positions: Sequence[int], rule: SamplingRule) -> list[Candidates]:
    """Return a draft's best choices of the tokens at ``positions``, by logits of a row each."""
    rows = [Row(rule, position, drafting=True, candidate_count=CANDIDATES) for position in positions]
    return [choice.candidates for choice in choose(logits.float().contiguous().numpy(), rows)]


@torch.inference_mode()
def target_text(target: Any, prompt: Sequence[int], count: int, rule: SamplingRule) -> Text:
    """Return a prompt with ``count`` tokens of the target after it, past an end token too."""
    tokens, cache, fresh = list(prompt), DynamicCache(), list(prompt)
    for _ in range(count):
        logits = target(torch.tensor([fresh]), past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0]
        fresh = [choose(logits.float().numpy(), [Row(rule, len(tokens))])[0].token]
        tokens += fresh
    return Text(tokens, len(prompt), rule)


@torch.inference_mode()
def learn(draft: Any, texts: Sequence[Text], outcomes: Outcomes) -> None:
    """Record how the draft's candidates did along the target's texts."""
    for text in texts:
        logits = draft(torch.tensor([text.tokens])).logits[0, text.prompt_length - 1 : -1]
        chosen = range(text.prompt_length, len(text.tokens))
        for position, candidates in zip(chosen, candidates_of(logits, chosen, text.rule), strict=True):
            for rank, (token, odds) in enumerate(odds_of(candidates)):
                outcomes.record(rank, odds, token == text.tokens[position])


@dataclass(slots=True)
class _Growing:
    """The tree before one position of a text."""

    start: int
    """Position of its first tokens."""
    nodes: list[Node] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=dict)
    """Place of a node's key in the draft's cache."""

    def add(self, parent: int, candidates: Candidates, text: Text, outcomes: Outcomes) -> None:
        """Add the candidates after a node, or the first tokens."""
        before = self.nodes[parent] if parent >= 0 else Node(1.0, 0, -1, True, True)
        position = self.start + before.depth
        right = text.tokens[position] if position < len(text.tokens) else None
        for rank, (token, stated) in enumerate(odds_of(candidates)):
            self.tokens.append(token)
            survival = before.survival * outcomes.odds(rank, stated)
            is_right = before.is_right and token == right
            self.nodes.append(Node(survival, before.depth + 1, parent, before.is_first and rank == 0, is_right))

    def to_expand(self, depth: int, most: int, deepest: int) -> list[int]:
        """Return the nodes of a depth whose successors may be among the best ``most``, or are the
        chain's."""
        if depth >= deepest:
            return []
        survivals = sorted((node.survival for node in self.nodes), reverse=True)
        least = survivals[most - 1] if len(survivals) >= most else 0.0
        return [
            index
            for index, node in enumerate(self.nodes)
            if node.depth == depth and (node.is_first or node.survival > least)
        ]

    def path(self, index: int) -> Iterator[int]:
        """Yield a node and those before it."""
        while index >= 0:
            yield index
            index = self.nodes[index].parent


@torch.inference_mode()
def grow(draft: Any, text: Text, outcomes: Outcomes, most: int, deepest: int) -> list[list[Node]]:
    """Return the tree before each position of a text that the target chose: the ``most`` nodes of
    the largest survival and the chain, no deeper than ``deepest``.

    All trees' nodes of one depth are rows of one forward, which see the text before their tree and
    their own path.
    """
    cache = DynamicCache()
    logits = draft(torch.tensor([text.tokens]), past_key_values=cache, use_cache=True).logits[0]
    starts = range(text.prompt_length, len(text.tokens))
    trees = [_Growing(start) for start in starts]
    for tree, candidates in zip(trees, candidates_of(logits[starts.start - 1 : -1], starts, text.rule), strict=True):
        tree.add(-1, candidates, text, outcomes)
    key_count = len(text.tokens)
    for depth in range(1, deepest):
        growing = [(tree, index) for tree in trees for index in tree.to_expand(depth, most, deepest)]
        if not growing:
            break
        mask = torch.full((len(growing), key_count + len(growing)), torch.finfo(torch.float32).min)
        for row, (tree, index) in enumerate(growing):
            tree.rows[index] = key_count + row
            mask[row, : tree.start] = 0
            mask[row, [tree.rows[node] for node in tree.path(index)]] = 0
        logits = draft(
            torch.tensor([[tree.tokens[index] for tree, index in growing]]),
            position_ids=torch.tensor([[tree.start + depth - 1 for tree, _ in growing]]),
            attention_mask=mask[None, None],
            past_key_values=cache,
            use_cache=True,
        ).logits[0]
        key_count += len(growing)
        found = candidates_of(logits, [tree.start + depth for tree, _ in growing], text.rule)
        for (tree, index), candidates in zip(growing, found, strict=True):
            tree.add(index, candidates, text, outcomes)
    return [tree.nodes for tree in trees]
