"""Compiling structures over tokens. llguidance is behind `slipstream.sampling` and nowhere else;
never torch."""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar
from weakref import WeakValueDictionary

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from slipstream.sampling.compiled_structure import Compiled
from slipstream.sampling.matcher import Matcher, reason
from slipstream.sampling.matcher_budget import Budget
from slipstream.sampling.structure import Structure
from slipstream.sampling.structure_errors import InvalidStructureError, StructureFailedError
from slipstream.sampling.structure_source import embedded_schemas, grammar_of
from slipstream.sampling.vocabulary import Vocabulary, vocabulary_of

CACHED_STRUCTURES, _CACHED_BYTES = 64, 256 * 2**20
_PROBED_TOKENS = 8

# The library recurses along chains of $ref and of rules: 2,000 links of a schema overflow 16 MiB,
# and it dies of it. MAX_SOURCE_BYTES bounds the links, this is four times what was enough for them.
# Untouched pages cost nothing.
_STACK_BYTES = 256 * 1024 * 1024

# The library's own limits on one mask and one step (tens of milliseconds) are right; 250,000 lexer
# states of 1 to 2 kB are not, for one sequence. Verbose errors would quote the text. An object of
# 2,000 optional properties has 8,000 items in a row, and a first mask in 40 ms.
_LIMITS = LLParserLimits(max_lexer_states=50_000, max_items_in_row=10_000, step_max_items=25_000, verbose_errors=False)

Result = TypeVar("Result")


class StructureCompiler:
    """Compiles structures for one tokenizer, and keeps the latest. Safe to share between threads.

    ``vocabulary_size`` is the width of the model's logits; tokens beyond the tokenizer's are never
    allowed. Special tokens are never allowed either, but for ``end_token_ids``: all of them
    wherever the text may end, and there only. The tokenizer is read when the first structure comes:
    few clients ever send one, and a large one takes a while.
    """

    def __init__(self, tokenizer_json: str | bytes, vocabulary_size: int, end_token_ids: Sequence[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocabulary_size = vocabulary_size
        self._end_token_ids = tuple(end_token_ids)
        self._lock = threading.Lock()
        self._latest: OrderedDict[Structure, tuple[Compiled, int]] = OrderedDict()
        self._byte_count = 0
        self._in_use: WeakValueDictionary[Structure, Compiled] = WeakValueDictionary()

    @functools.cached_property
    def _vocabulary(self) -> Vocabulary:
        return vocabulary_of(self._tokenizer_json, self._vocabulary_size, self._end_token_ids)

    def validate(self, structure: Structure, byte_count: int = 0) -> Compiled:
        """Compiles a structure and takes its first few steps. InvalidStructureError says what the
        library says.

        As long as what is returned is held, `matcher` need not compile. ``byte_count`` is what a
        trial saw it take: only so many of those that no sequence follows are kept.
        StructureUnsupportedError if the tokenizer is not one of bytes, or the model has no end
        token.
        """
        known = self._known(structure)
        if known is None or known.is_spent:
            known = self.compile(structure)
            self._keep(structure, known, byte_count)
        return known

    def matcher(self, structure: Structure, budget: Budget | None = None) -> Matcher:
        """A matcher before the first token; without a budget it has its own. InvalidStructureError
        as from ``validate``."""
        return Matcher(self._known(structure) or self.validate(structure), self._vocabulary, budget)

    def compile(self, structure: Structure) -> Compiled:
        """Compile a structure as `validate` does, without keeping it."""
        grammar = grammar_of(structure)
        tokenizer = self._vocabulary.tokenizer

        def new() -> tuple[LLMatcher, float]:
            def timed() -> tuple[LLMatcher, float]:
                began = time.thread_time()
                return LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS), time.thread_time() - began

            state, seconds = on_deep_stack(timed)
            if state.is_error():
                rule = _wrong_rule(structure, tokenizer)
                raise InvalidStructureError(f"cannot be compiled: {reason(state, structure.kind)}", rule)
            return state, seconds

        compiled = Compiled(new)
        _probe(compiled, self._vocabulary)
        return compiled

    def _known(self, structure: Structure) -> Compiled | None:
        with self._lock:
            if structure in self._latest:
                self._latest.move_to_end(structure)
            return self._in_use.get(structure)

    def _keep(self, structure: Structure, compiled: Compiled, byte_count: int) -> None:
        with self._lock:
            self._in_use[structure] = compiled
            self._byte_count += byte_count - self._latest.pop(structure, (compiled, 0))[1]
            self._latest[structure] = compiled, byte_count
            while len(self._latest) > CACHED_STRUCTURES or (self._byte_count > _CACHED_BYTES and len(self._latest) > 1):
                self._byte_count -= self._latest.popitem(last=False)[1][1]


def _wrong_rule(structure: Structure, tokenizer: LLTokenizer) -> str:
    """Return the rule of the first JSON schema within a grammar that cannot be compiled alone."""

    def is_wrong(grammar: str) -> bool:
        return on_deep_stack(lambda: LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS).is_error())

    return next((rule for rule, grammar in embedded_schemas(structure) if is_wrong(grammar)), "")


def _probe(compiled: Compiled, vocabulary: Vocabulary) -> None:
    """Takes the first steps a sequence might: what describes no text, or needs too much, mostly
    shows there."""
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
_here = threading.local()


def on_deep_stack(work: Callable[[], Result]) -> Result:
    """Call ``work`` on a thread whose stack is deep enough for the library's recursion, which may
    be this one, and return its result."""
    if getattr(_here, "is_deep", False):
        return work()
    future: Future[Result] = Future()

    def run() -> None:
        _here.is_deep = True
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
