"""Following structures over tokens: which may come next.

Everything here is a function of the tokens generated so far. A limit that a grammar runs into is an
error, never an early end: which limit is met may depend on what was computed before, the text may
not.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher

from slipstream.sampling.compiled_structure import Compiled
from slipstream.sampling.matcher_budget import Budget
from slipstream.sampling.structure import StructureKind
from slipstream.sampling.structure_errors import StructureFailedError
from slipstream.sampling.vocabulary import Mask, Vocabulary

_SOURCE_LINE = re.compile(r"\s*\d+ \| ")
_LONGEST_LINE, _MOST_LINES = 200, 12

_MOST_REPLAY_SECONDS = 0.5
"""For which one sequence's tokens are followed again, a mask for each."""

Result = TypeVar("Result")


class Matcher:
    """Follows the tokens of one sequence through a structure. For one thread at a time.

    Tokens count from the turn's start. What it answers depends on them alone, not on the calls that
    led to them. Methods raise StructureFailedError where the structure cannot go on; the next
    ``sync`` finds its way from there.
    """

    def __init__(self, compiled: Compiled, vocabulary: Vocabulary, budget: Budget | None = None) -> None:
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._budget = budget or Budget()
        self._tokens: list[int] = []  # an end token, if any, is the last; the library never sees it
        self._now: LLMatcher | None = None
        """The state after all of the tokens, or in error, and no other ever; None until it is
        wanted."""

    def sync(self, tokens: Sequence[int]) -> bool:
        """Goes to the state after exactly ``tokens``. False if they do not fit: then after the
        longest prefix that does."""
        wanted = list(tokens)
        kept = len(self._tokens)
        if wanted[:kept] != self._tokens:
            kept = _common_length(self._tokens, wanted)
            self._go_back(kept)
        return self._consume(wanted[kept:]) == len(wanted) - kept

    def advance(self, token: int) -> bool:
        """Goes one token on; False, and the state as it was, if that token is not allowed. Nothing
        follows an end token."""
        return self._consume([token]) == 1

    def allowed_mask(self) -> Mask:
        """The tokens that may come next: ``[vocabulary_size]``, never all False. After an end token
        only end tokens."""
        vocabulary = self._vocabulary
        if self._ended:
            return vocabulary.end.copy()
        bits, may_end = self._computed(_bits_and_end)
        if bits is None:
            return vocabulary.end.copy()
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=vocabulary.size, bitorder="little").view(np.bool_)
        mask &= vocabulary.text
        if may_end:
            mask |= vocabulary.end
        if not mask.any():
            raise StructureFailedError("no token continues the structure")
        return mask

    def masks(self, draft: Sequence[int]) -> list[Mask | None]:
        """The masks before, between and after speculated tokens: ``len(draft) + 1`` of them. The
        state stays as it was.

        From a token on that does not fit, or that leads where the structure cannot go on, all are
        None. Nothing may be chosen by a row without a mask: accept at most as many tokens as have a
        mask after them, so that the error, if it is one, comes with the next round and not from a
        guess.
        """
        before = list(self._tokens)
        masks: list[Mask | None] = [self.allowed_mask()]
        try:
            for token in draft:
                if not self.advance(token):
                    break
                masks.append(self.allowed_mask())
        except StructureFailedError:
            pass
        self.sync(before)
        return masks + [None] * (len(draft) + 1 - len(masks))

    @property
    def _state(self) -> LLMatcher:
        """The state after the tokens. StructureFailedError if no sound first state can be made."""
        if self._now is None:
            self._now = self._compiled.copy(self._budget)
        return self._now

    @property
    def _ended(self) -> bool:
        return bool(self._tokens) and self._vocabulary.is_end(self._tokens[-1])

    def _consume(self, tokens: list[int]) -> int:
        """Consume the tokens that fit, and return how many they are."""
        if not tokens or self._ended:
            return 0
        # The library would take a token without bytes anywhere.
        text = list(itertools.takewhile(self._vocabulary.is_text, tokens))

        def consume(state: LLMatcher) -> int:
            count = state.try_consume_tokens(text)
            if count < len(text):
                state.compute_bitmask()  # a limit looks like a token that does not fit, until the next mask
            return count

        count = self._computed(consume, len(text)) if text else 0
        self._tokens += text[:count]
        is_end_next = count == len(text) < len(tokens) and self._vocabulary.is_end(tokens[count])
        if is_end_next and self._computed(lambda state: state.is_accepting()):
            self._tokens.append(tokens[count])
            count += 1
        return count

    def _go_back(self, length: int) -> None:
        dropped = len(self._tokens) - length - self._ended
        del self._tokens[length:]
        if dropped <= 0:
            return
        with self._at_work():
            if not self._state.rollback(dropped):
                why = reason(self._state)
                if not self._begin_again(careful=False) and not self._begin_again(careful=True):
                    raise StructureFailedError(f"the structure cannot be followed again: {why}")
            # The library (1.9.1) keeps its last mask by the parser's row and the lexer's state, and
            # forgets to drop it: another text that comes to the same two would get it. A mask from
            # here, further back than any that follows, replaces it.
            self._sound(lambda state: state.compute_bitmask(), self._state)

    def _computed(self, compute: Callable[[LLMatcher], Result], token_count: int = 0) -> Result:
        """Return what the library computes, and charge its processor time. If the budget is too
        small, the state stays as it is."""
        self._budget.earn(token_count)
        state = self._state  # a first one charges for itself
        with self._at_work():
            return self._sound(compute, state)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """Charge what is computed. What fails on its way leaves the state before the first token,
        never one in between."""
        try:
            with self._budget.charged():
                yield
        except BaseException:
            self._tokens.clear()
            self._now = None
            self._compiled.doubt()
            raise

    def _sound(self, compute: Callable[[LLMatcher], Result], state: LLMatcher) -> Result:
        """The library gathers states up to a limit and never leaves an error: begin again."""
        result = compute(state)
        for careful in (False, True):
            if not self._state.is_error():
                return result
            why = reason(self._state)
            if self._begin_again(careful=careful):
                result = compute(self._state)
        if not self._state.is_error():
            return result
        raise StructureFailedError(f"the structure cannot go on: {why}")

    def _begin_again(self, *, careful: bool) -> bool:
        """The same state from a new beginning, alone. False, and the state as it was, if the
        library cannot follow in time.

        It refuels with each mask: carefully is with a mask for each token, which gathers more
        states.
        """
        try:
            state = self._compiled.alone(self._budget)
        except StructureFailedError:
            return False
        text = self._tokens[: len(self._tokens) - self._ended]
        if not (_replayed_carefully(state, text) if careful else state.consume_tokens(text)) or state.is_error():
            return False
        self._now = state
        return True


def _bits_and_end(state: LLMatcher) -> tuple[bytes | None, bool]:
    """The next tokens in bits, None if only an end may come, and whether the text may end.

    A state in error is stopped too, so its error is asked for after this.
    """
    if state.is_stopped():
        return None, True
    return state.compute_bitmask(), state.is_accepting()


def _replayed_carefully(state: LLMatcher, text: Iterable[int]) -> bool:
    """Return True if all of a text was followed in its time, with a mask for each token."""
    last = time.thread_time() + _MOST_REPLAY_SECONDS
    for token in text:
        if time.thread_time() > last:
            return False
        state.compute_bitmask()
        if not state.consume_token(token):
            return False
    return True


def reason(state: LLMatcher, kind: StructureKind | None = None) -> str:
    """The library's own words, without its backtraces and endless lines; of sources only a client's
    grammar is shown."""
    lines = re.split(r"\n<(?:backtrace|non-verbose|state)", state.get_error())[0].rstrip().splitlines()
    if kind is not StructureKind.GRAMMAR:
        lines = list(itertools.takewhile(lambda line: not _SOURCE_LINE.match(line), lines))
    lines = [line for line in lines if len(line) <= _LONGEST_LINE or line.strip(" ^")]
    shown = [line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…" for line in lines]
    if len(shown) > _MOST_LINES:
        shown = [*shown[: _MOST_LINES - 1], "…"]
    return "\n".join(shown).replace("NoExtensionBias", "no token can come next") or "no reason given"


def _common_length(left: Iterable[int], right: Iterable[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
