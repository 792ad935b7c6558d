"""Compiling structures over tokens. llguidance is behind `slipstream.sampling` and nowhere else; never torch."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits

from slipstream.sampling.matcher import Compiled, Matcher, reason
from slipstream.sampling.structure import Structure
from slipstream.sampling.structure_errors import InvalidStructureError, StructureFailedError
from slipstream.sampling.structure_source import grammar_of
from slipstream.sampling.vocabulary import Vocabulary, vocabulary_of

CACHED_STRUCTURES = 64  # a hostile one holds some 20 MB
_PROBED_TOKENS = 8

# The library recurses along chains of $ref and of rules: 2,000 links of a schema overflow 16 MiB, and it dies of it.
# MAX_SOURCE_BYTES bounds the links, this is four times what was enough for them. Untouched pages cost nothing.
_STACK_BYTES = 256 * 1024 * 1024

# The library's own limits on one mask and one step (tens of milliseconds) are right; 250,000 lexer states of 1 to 2 kB
# are not, for one sequence. Verbose errors would quote the text.
_LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)

Result = TypeVar("Result")


class StructureCompiler:
    """Compiles structures for one tokenizer, and keeps the latest. Safe to share between threads.

    ``vocabulary_size`` is the width of the model's logits; tokens beyond the tokenizer's are never allowed. Special
    tokens are never allowed either, but for ``end_token_ids``: all of them wherever the text may end, and there only.
    The tokenizer is read when the first structure comes: few clients ever send one, and a large one takes a while.
    """

    def __init__(self, tokenizer_json: str | bytes, vocabulary_size: int, end_token_ids: Sequence[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocabulary_size = vocabulary_size
        self._end_token_ids = tuple(end_token_ids)
        self._compiled = functools.lru_cache(CACHED_STRUCTURES)(self._compile)

    @functools.cached_property
    def _vocabulary(self) -> Vocabulary:
        return vocabulary_of(self._tokenizer_json, self._vocabulary_size, self._end_token_ids)

    def validate(self, structure: Structure) -> None:
        """Compiles a structure and takes its first few steps. InvalidStructureError says what the library says.

        StructureUnsupportedError if the tokenizer is not one of bytes, or the model has no end token.
        """
        self._compiled(structure)

    def matcher(self, structure: Structure) -> Matcher:
        """A matcher before the first token. InvalidStructureError as from ``validate``."""
        return Matcher(self._compiled(structure), self._vocabulary)

    def _compile(self, structure: Structure) -> Compiled:
        grammar = grammar_of(structure)
        tokenizer = self._vocabulary.tokenizer

        def new() -> LLMatcher:
            state = _on_deep_stack(lambda: LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS))
            if state.is_error():
                raise InvalidStructureError(f"cannot be compiled: {reason(state, structure.kind)}")
            return state

        compiled = Compiled(new)
        _probe(compiled, self._vocabulary)
        return compiled


def _probe(compiled: Compiled, vocabulary: Vocabulary) -> None:
    """Takes the first steps a sequence might: what describes no text, or needs too much, mostly shows there."""
    matcher = Matcher(compiled, vocabulary)
    taken = 0
    try:
        while taken < _PROBED_TOKENS:
            allowed = matcher.allowed_mask() & vocabulary.text
            if not allowed.any():
                break
            matcher.advance(int(allowed.argmax()))
            taken += 1
    except StructureFailedError as error:
        raise InvalidStructureError(f"cannot be met: after {taken} tokens, {error}") from error
    state = matcher._state
    if taken and not state.rollback(taken):
        raise InvalidStructureError(f"cannot be speculated on: {reason(state)}")


_stack_size = threading.Lock()


def _on_deep_stack(work: Callable[[], Result]) -> Result:
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    with _stack_size:  # the size is the process's: a thread that starts elsewhere meanwhile has a roomy stack, no more
        before = threading.stack_size(_STACK_BYTES)
        try:
            threading.Thread(target=run, name="compile structure", daemon=True).start()
        finally:
            threading.stack_size(before)
    return future.result()
