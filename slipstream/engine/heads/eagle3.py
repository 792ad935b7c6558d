"""EAGLE-3: one decoder layer that reads the target's hidden states, and guesses token after token.

::

    a step of the target   settles rows: their tokens are part of the text
    take note              their features and next tokens give keys and values, in pages
    guess                  the last row attends to them, and picks a token; then that token
                           with the layer's own output, and so on: a chain, in memory of its own

Keys and values of a position lie in the target's own pages, by page number. So what the engine does
with pages (truncate, share, evict, copy) holds for them too. They belong to a token and the token
after it. The last position of a page that two sequences share has the next token of the one that
wrote last: a hint may be a little worse for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.engine.heads.eagle3_layer import Eagle3Layer
from slipstream.engine.heads.eagle3_step import Memory, Stepper
from slipstream.engine.heads.picking import Picked, Picking
from slipstream.engine.hidden_heads import Guess, HiddenStates, Settled
from slipstream.engine.sequence import PageCopy
from slipstream.sampling.kernel import Floats32
from slipstream.sampling.rule import SamplingRule

LEAST_SURVIVAL = 0.2
"""A chain ends with a token that is less likely than this to count. Each token costs a step of the
layer."""

LONGEST_CHAIN = 8
"""Most tokens of a guess. The layer is trained to follow itself for a few steps."""

LONGEST_SIGHT = 2048
"""Most positions of the text that a guess attends to, the last ones. It bounds the time of a guess
after a long text."""


class _Chain:
    """A sequence's guess as it grows."""

    def __init__(self, settled: Settled, memory: Memory) -> None:
        """``memory`` has what the last settled row attends to."""
        self._settled, self.memory = settled, memory
        self.tokens: list[int] = []
        self._survivals: list[float] = []

    @property
    def length(self) -> int:
        """Length of the text with the guess."""
        return len(self._settled.tokens) + len(self.tokens)

    @property
    def rule(self) -> SamplingRule:
        """The rule by which the target chooses."""
        return self._settled.rule

    @property
    def most(self) -> int:
        """Most tokens of the guess."""
        return min(self._settled.most, LONGEST_CHAIN)

    @property
    def last_token(self) -> int:
        """The last token of the text with the guess."""
        return self.tokens[-1] if self.tokens else self._settled.tokens[-1]

    @property
    def context(self) -> Sequence[int]:
        """All tokens, if the rule looks at them."""
        return [*self._settled.tokens, *self.tokens] if self._settled.rule.penalises else ()

    def extend(self, picked: Picked | None) -> bool:
        """Add a token, and return whether another one may follow."""
        if picked is None:
            return False
        survival = (self._survivals[-1] if self._survivals else 1.0) * min(1.0, picked.odds)
        self.tokens.append(picked.token)
        self._survivals.append(survival)
        has_room = len(self.tokens) < self.most
        return has_room and survival >= LEAST_SURVIVAL and picked.token not in self._settled.rule.ends

    @property
    def guess(self) -> Guess:
        """The tokens so far."""
        return Guess(tuple(self.tokens), tuple(self._survivals))


class Eagle3Heads:
    """`slipstream.engine.hidden_heads.HiddenHeads` of an EAGLE-3 head."""

    kind = "eagle3"
    reads_all_rows = True

    def __init__(self, layer: Eagle3Layer, picking: Picking, hidden: HiddenStates, source_id: int) -> None:
        """Taps the layers that the head reads. UnsupportedModelError if they cannot be read."""
        self.source_id = source_id
        self._layer, self._picking, self._hidden = layer, picking, hidden
        self._stepper = Stepper(layer)
        hidden.tap(layer.config.layer_ids)
        self._page_size = 0
        self._memory: np.ndarray = np.empty(0)
        """Keys and values, float32 ``[2, pages + 1, page size, key heads, size]``."""
        self._following: np.ndarray = np.empty(0)
        """int64 ``[pages + 1, page size]``: the token after each position that was taken note of. A
        position with another token there is not this text's."""

    def reserve(self, page_count: int, page_size: int) -> int:
        """See `slipstream.engine.hidden_heads.HiddenHeads`."""
        config = self._layer.config
        self._page_size = page_size
        shape = 2, page_count + 1, page_size, config.kv_head_count, config.head_size
        self._memory = np.zeros(shape, dtype=np.float32)
        self._following = np.full(shape[1:3], -1)
        return self._memory.nbytes + self._following.nbytes

    def copy_pages(self, copies: list[PageCopy]) -> None:
        """See `slipstream.engine.hidden_heads.HiddenHeads`."""
        for copy in copies:
            self._memory[:, copy.destination] = self._memory[:, copy.source]
            self._following[copy.destination] = self._following[copy.source]

    def guess(self, settled: Sequence[Settled]) -> list[Guess]:
        """See `slipstream.engine.hidden_heads.HiddenHeads`."""
        if not settled:
            return []
        features = self._take_note(settled)
        asking = [index for index, each in enumerate(settled) if each.most > 0]
        chains = {index: _Chain(settled[index], self._memory_of(settled[index])) for index in asking}
        if chains:
            last = np.cumsum([each.row_count for each in settled])[asking] - 1
            self._grow([*chains.values()], features[last])
        return [chains[index].guess if index in chains else Guess() for index in range(len(settled))]

    def _take_note(self, settled: Sequence[Settled]) -> Floats32:
        """Keep the keys and values of all settled rows. Returns the rows' features."""
        states, layer = self._hidden.tapped(), self._layer
        rows = np.concatenate([np.arange(each.first_row, each.first_row + each.row_count) for each in settled])
        positions = np.concatenate([np.arange(each.start, each.start + each.row_count) for each in settled])
        following = np.concatenate(
            [np.array(each.tokens[each.start + 1 : each.start + each.row_count + 1]) for each in settled]
        )
        features = layer.fuse(states[rows])
        keys, values = layer.keep(layer.enter(following, features), layer.turns(positions))
        pages = np.concatenate([self._pages_of(each) for each in settled])
        places = positions % self._page_size
        self._memory[0, pages, places], self._memory[1, pages, places] = keys, values
        self._following[pages, places] = following
        return features

    def _pages_of(self, settled: Settled) -> np.ndarray:
        positions = np.arange(settled.start, settled.start + settled.row_count)
        return np.array(settled.pages)[positions // self._page_size]

    def _memory_of(self, settled: Settled) -> Memory:
        """Return what the last settled row of a sequence attends to, with room for it and for a
        guess."""
        end = settled.start + settled.row_count - 1
        first_page = max(0, end - LONGEST_SIGHT) // self._page_size
        first = first_page * self._page_size
        pages = np.array(settled.pages[first_page : -(-end // self._page_size)], dtype=np.int64)
        noted = self._following[pages].reshape(-1)[: end - first]
        seen = np.flatnonzero(noted == np.array(settled.tokens[first + 1 : end + 1], dtype=np.int64))
        stored = self._memory[:, pages].reshape(2, -1, *self._memory.shape[3:])
        config, room = self._layer.config, min(settled.most, LONGEST_CHAIN)
        both = np.empty((2, config.kv_head_count, len(seen) + room, config.head_size), dtype=np.float32)
        both[:, :, : len(seen)] = stored[:, seen].transpose(0, 2, 1, 3)
        return Memory(both[0], both[1], len(seen))

    def _grow(self, chains: list[_Chain], features: Floats32) -> None:
        """Let chains grow from the features of their last settled rows."""
        longest = min(LONGEST_CHAIN, max([chain.most for chain in chains]))
        starts = np.array([chain.length - 2 for chain in chains])
        turns = self._layer.turns(starts[:, np.newaxis] + np.arange(longest))
        going = np.arange(len(chains))
        tokens = [chain.last_token for chain in chains]
        for step in range(longest):
            features = np.ascontiguousarray(features)
            logits = self._stepper.step(
                tokens, features, np.ascontiguousarray(turns[going, step]), [chain.memory for chain in chains]
            )
            picked = self._picking.pick(
                logits,
                [chain.rule for chain in chains],
                [chain.context for chain in chains],
                [chain.length for chain in chains],
            )
            kept = [index for index, chain in enumerate(chains) if chain.extend(picked[index])]
            if not kept:
                return
            chains, features, going = [chains[index] for index in kept], features[kept], going[kept]
            tokens = [chain.last_token for chain in chains]
