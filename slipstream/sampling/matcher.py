"""Following structures over tokens: which may come next.

Everything here is a function of the tokens generated so far. A limit that a grammar runs into is an error, never an
early end: which limit is met may depend on what was computed before, the text may not.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher

from slipstream.sampling.structure import StructureKind
from slipstream.sampling.structure_errors import StructureFailedError
from slipstream.sampling.vocabulary import Mask, Vocabulary

_SOURCE_LINE = re.compile(r"\s*\d+ \| ")
_LONGEST_LINE, _MOST_LINES = 200, 12

# Processor time that following one structure may take, all its sequences together. A mask takes 0.01 to 1 ms.
_SECONDS_A_MASK, _SECONDS_A_TOKEN, _BURST_SECONDS = 0.005, 0.0002, 0.3

_MOST_SECONDS_TO_REPEAT = 0.1
"""A structure that took longer to compile is not compiled again between the steps of others."""

_MOST_REPLAY_SECONDS = 0.5
"""For which one sequence's tokens are followed again, a mask for each."""

Result = TypeVar("Result")


class Compiled:
    """States before the first token, as many as one likes.

    What the library calls a deep copy shares its lexer with the original. That makes copies fast, one's work serves
    all; but a limit that one of them meets, all have met, and the original too.
    """

    def __init__(self, new: Callable[[], tuple[LLMatcher, float]]) -> None:
        """``new`` compiles: it returns a state and the processor time that this took."""
        self._new = new
        self._shared, self._seconds = new()
        self._lock = threading.Lock()
        self._left = _BURST_SECONDS
        self.is_spent = False
        """Whether no sound copy can be made any more."""

    def alone(self) -> LLMatcher:
        """A state that shares nothing. StructureFailedError if that takes too long where sequences wait for one another."""
        if self._seconds > _MOST_SECONDS_TO_REPEAT:
            raise StructureFailedError(
                "it met a limit and takes too long to be compiled again: use a simpler structure"
            )
        state, seconds = self._new()
        self.charge(seconds)
        return state

    def copy(self) -> LLMatcher:
        """A state that shares what others find, a sound one: if the shared lexer met a limit, it is replaced."""
        with self._lock:
            state = self._shared.deep_copy()
            state.compute_bitmask()
            if state.is_error():
                self.is_spent = True
                self._shared = self.alone()
                self.is_spent = False
                state = self._shared.deep_copy()
            return state

    def earn(self, token_count: int) -> None:
        """So many tokens are about to be followed, then a mask. StructureFailedError if those before took too much time: all
        sequences of a step wait for it."""
        self._left = min(_BURST_SECONDS, self._left + _SECONDS_A_MASK + token_count * _SECONDS_A_TOKEN)
        if self._left < 0:
            raise StructureFailedError(
                f"it takes more than {_SECONDS_A_MASK * 1000:g} ms of processor time a token: use a less ambiguous "
                "grammar, shorter repetitions or fewer alternatives"
            )

    def charge(self, seconds: float) -> None:
        """Some work for a sequence took so much processor time."""
        self._left = max(-_BURST_SECONDS, self._left - seconds)


class Matcher:
    """Follows the tokens of one sequence through a structure. For one thread at a time.

    Tokens count from the turn's start. What it answers depends on them alone, not on the calls that led to them.
    Methods raise StructureFailedError where the structure cannot go on; the next ``sync`` finds its way from there.
    """

    def __init__(self, compiled: Compiled, vocabulary: Vocabulary) -> None:
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._state = compiled.copy()
        self._tokens: list[int] = []  # an end token, if any, is the last; the library never sees it

    def sync(self, tokens: Sequence[int]) -> bool:
        """Goes to the state after exactly ``tokens``. False if they do not fit: then after the longest prefix that does."""
        wanted = list(tokens)
        kept = len(self._tokens)
        if wanted[:kept] != self._tokens:
            kept = _common_length(self._tokens, wanted)
            self._go_back(kept)
        return self._consume(wanted[kept:]) == len(wanted) - kept

    def advance(self, token: int) -> bool:
        """Goes one token on; False, and the state as it was, if that token is not allowed. Nothing follows an end token."""
        return self._consume([token]) == 1

    def allowed_mask(self) -> Mask:
        """The tokens that may come next: ``[vocabulary_size]``, never all False. After an end token only end tokens."""
        vocabulary = self._vocabulary
        if self._ended or self._state.is_stopped():
            return vocabulary.end.copy()
        bits = self._computed(LLMatcher.compute_bitmask)
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=vocabulary.size, bitorder="little").view(np.bool_)
        mask &= vocabulary.text
        if self._state.is_accepting():
            mask |= vocabulary.end
        if not mask.any():
            raise StructureFailedError("no token continues the structure")
        return mask

    def masks(self, draft: Sequence[int]) -> list[Mask | None]:
        """The masks before, between and after speculated tokens: ``len(draft) + 1`` of them. The state stays as it was.

        From a token on that does not fit, or that leads where the structure cannot go on, all are None. Nothing may be
        chosen by a row without a mask: accept at most as many tokens as have a mask after them, so that the error, if
        it is one, comes with the next round and not from a guess.
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
    def _ended(self) -> bool:
        return bool(self._tokens) and self._vocabulary.is_end(self._tokens[-1])

    def _consume(self, tokens: list[int]) -> int:
        """How many of the tokens fit; those are consumed."""
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
        if count == len(text) < len(tokens) and self._vocabulary.is_end(tokens[count]) and self._state.is_accepting():
            self._tokens.append(tokens[count])
            count += 1
        return count

    def _go_back(self, length: int) -> None:
        dropped = len(self._tokens) - length - self._ended
        del self._tokens[length:]
        if dropped > 0 and not self._state.rollback(dropped):
            why = reason(self._state)
            if not self._begin_again(careful=False) and not self._begin_again(careful=True):
                self._forget()
                raise StructureFailedError(f"the structure cannot be followed again: {why}")
        # The library (1.9.1) keeps its last mask by the parser's row and the lexer's state, and forgets to drop it: another
        # text that comes to the same two would get it. A mask from here, further back than any that follows, replaces it.
        if dropped > 0:
            self._state.compute_bitmask()

    def _computed(self, compute: Callable[[LLMatcher], Result], token_count: int = 0) -> Result:
        """What the library computes, paid for with processor time. What cannot be paid leaves the state as it is."""
        self._compiled.earn(token_count)
        began = time.thread_time()
        try:
            return self._sound(compute)
        finally:
            self._compiled.charge(time.thread_time() - began)

    def _sound(self, compute: Callable[[LLMatcher], Result]) -> Result:
        """The library gathers states up to a limit and never leaves an error: begin again."""
        result = compute(self._state)
        for careful in (False, True):
            if not self._state.is_error():
                return result
            why = reason(self._state)
            if self._begin_again(careful=careful):
                result = compute(self._state)
        if not self._state.is_error():
            return result
        if not self._begin_again(careful=True):
            self._forget()
        raise StructureFailedError(f"the structure cannot go on: {why}")

    def _begin_again(self, *, careful: bool) -> bool:
        """The same state from a new beginning, alone. False, and a state in error, if the library cannot follow.

        It refuels with each mask: carefully is with a mask for each token, which gathers more states.
        """
        try:
            self._state = self._compiled.alone()
        except StructureFailedError:
            return False
        text = self._tokens[: len(self._tokens) - self._ended]
        if careful:
            last = time.thread_time() + _MOST_REPLAY_SECONDS
            for token in text:
                if time.thread_time() > last:
                    return False
                self._state.compute_bitmask()
                self._state.consume_token(token)
        else:
            self._state.consume_tokens(text)
        return not self._state.is_error()

    def _forget(self) -> None:
        self._state = self._compiled.copy()
        self._tokens.clear()


def reason(state: LLMatcher, kind: StructureKind | None = None) -> str:
    """The library's own words, without its backtraces and endless lines; of sources only a client's grammar is shown."""
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
