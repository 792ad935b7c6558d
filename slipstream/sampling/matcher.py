"""Structures over tokens: which tokens may come next. llguidance is behind this module and nowhere else; never torch.

Everything here is a function of the tokens generated so far. A limit that a grammar runs into is an error, never an
early end: which limit is met may depend on what was computed before, the text may not.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from numpy.typing import NDArray

from slipstream.errors import Code, FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.sampling.structure import MAX_GRAMMAR_BYTES, MAX_REGEX_BYTES, MAX_SOURCE_BYTES, Structure, StructureKind

Mask = NDArray[np.bool_]

CACHED_STRUCTURES = 64  # a hostile one holds some 20 MB
_PROBED_TOKENS = 8

# The library recurses along chains of $ref and of rules: 2,000 links of a schema overflow 16 MiB, and it dies of it.
# MAX_SOURCE_BYTES bounds the links, this is four times what was enough for them. Untouched pages cost nothing.
_STACK_BYTES = 256 * 1024 * 1024

# The library's own limits on one mask and one step (tens of milliseconds) are right; 250,000 lexer states of 1 to 2 kB
# are not, for one sequence. Verbose errors would quote the text.
_LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)

# The library's default is any amount of blank space, and a model that does not know how to go on fills its turn with it.
# This allows what JSON is written like: on one line, or one item a line, indented.
_JSON_WHITESPACE = r"( |\n[ \t]{0,20})"

# Without this, forced bytes allow only their canonical tokens: masks would depend on the tokenization before.
_TOP = '%llguidance {"no_forcing": true}\nstart: @structure\n'

_LARK_TOKEN = re.compile(
    r"""(?P<comment> //[^\n]* | \#[^\n]* )
      | (?P<literal> "(?:\\.|[^"\\\n])*" | /(?:\\.|[^/\\\n])+/ )
      | (?P<refused> <[^>\s]*>? | %llguidance\b )
      | (?P<name> [A-Za-z_]\w* ) (?P<defined> [^\S\n]* (?:\[[^\]\n]*\])? [^\S\n]* : (?!:) )?""",
    re.VERBOSE,
)
_SOURCE_LINE = re.compile(r"\s*\d+ \| ")
_LONGEST_LINE, _MOST_LINES = 200, 12

Result = TypeVar("Result")


class InvalidStructureError(InvalidFieldsError):
    """The structure is not well formed, cannot be enforced, or describes no text at all."""

    reason = "INVALID_STRUCTURE"

    def __init__(self, why: str) -> None:
        super().__init__([FieldViolation("settings.structure", why)])


class StructureFailedError(SlipstreamError):
    """A structure that compiled came to a point that no token continues, or that costs more than the limits allow."""

    code = Code.FAILED_PRECONDITION
    reason = "STRUCTURE_FAILED"


class StructureUnsupportedError(SlipstreamError):
    """The bytes of the model's tokens cannot be told from its tokenizer, or it has no token to end a text with."""

    code = Code.UNIMPLEMENTED
    reason = "STRUCTURE_UNSUPPORTED"


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """``text[token]``: the token stands for bytes of text and ends nothing. ``end`` has the end tokens alone."""

    tokenizer: LLTokenizer
    text: Mask
    end: Mask

    @property
    def size(self) -> int:
        return len(self.text)

    def is_text(self, token: int) -> bool:
        return 0 <= token < len(self.text) and bool(self.text[token])

    def is_end(self, token: int) -> bool:
        return 0 <= token < len(self.end) and bool(self.end[token])


class _Tokens(TokenizerWrapper):
    """A vocabulary as the library takes it: ``tokens[id]`` are a token's bytes, empty where it is not text."""

    def __init__(self, tokens: Sequence[bytes], end_token: int) -> None:
        self.tokens = tokens
        self.special_token_ids: Sequence[int] = ()
        self.eos_token_id = end_token
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True

    def __call__(self, text: Any) -> list[int]:
        raise NotImplementedError("nothing is tokenized: no bytes are forced")


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
    def _vocabulary(self) -> _Vocabulary:
        return _vocabulary(self._tokenizer_json, self._vocabulary_size, self._end_token_ids)

    def validate(self, structure: Structure) -> None:
        """Compiles a structure and takes its first few steps. InvalidStructureError says what the library says.

        StructureUnsupportedError if the tokenizer is not one of bytes, or the model has no end token.
        """
        self._compiled(structure)

    def matcher(self, structure: Structure) -> Matcher:
        """A matcher before the first token. InvalidStructureError as from ``validate``."""
        return Matcher(self._compiled(structure), self._vocabulary)

    def _compile(self, structure: Structure) -> _Compiled:
        grammar = _grammar(structure)
        tokenizer = self._vocabulary.tokenizer

        def new() -> LLMatcher:
            state = _on_deep_stack(lambda: LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS))
            if state.is_error():
                raise InvalidStructureError(f"cannot be compiled: {_reason(state, structure.kind)}")
            return state

        compiled = _Compiled(new)
        _probe(compiled, self._vocabulary)
        return compiled


class _Compiled:
    """States before the first token, as many as one likes.

    What the library calls a deep copy shares its lexer with the original. That makes copies fast, one's work serves
    all; but a limit that one of them meets, all have met, and the original too.
    """

    def __init__(self, new: Callable[[], LLMatcher]) -> None:
        self.alone = new
        self._shared = new()
        self._lock = threading.Lock()

    def copy(self) -> LLMatcher:
        """A state that shares what others find, a sound one: if the shared lexer met a limit, it is replaced."""
        with self._lock:
            state = self._shared.deep_copy()
            state.compute_bitmask()
            if state.is_error():
                self._shared = self.alone()
                state = self._shared.deep_copy()
            return state


class Matcher:
    """Follows the tokens of one sequence through a structure. For one thread at a time.

    Tokens count from the turn's start. What it answers depends on them alone, not on the calls that led to them.
    Methods raise StructureFailedError where the structure cannot go on; the next ``sync`` finds its way from there.
    """

    def __init__(self, compiled: _Compiled, vocabulary: _Vocabulary) -> None:
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

        count = self._computed(consume) if text else 0
        self._tokens += text[:count]
        if count == len(text) < len(tokens) and self._vocabulary.is_end(tokens[count]) and self._state.is_accepting():
            self._tokens.append(tokens[count])
            count += 1
        return count

    def _go_back(self, length: int) -> None:
        dropped = len(self._tokens) - length - self._ended
        del self._tokens[length:]
        if dropped > 0 and not self._state.rollback(dropped):
            why = _reason(self._state)
            if not self._begin_again(careful=False) and not self._begin_again(careful=True):
                self._forget()
                raise StructureFailedError(f"the structure cannot be followed again: {why}")
        # The library (1.9.1) keeps its last mask by the parser's row and the lexer's state, and forgets to drop it: another
        # text that comes to the same two would get it. A mask from here, further back than any that follows, replaces it.
        if dropped > 0:
            self._state.compute_bitmask()

    def _computed(self, compute: Callable[[LLMatcher], Result]) -> Result:
        """What the library computes. It gathers states up to a limit and never leaves an error: begin again."""
        result = compute(self._state)
        for careful in (False, True):
            if not self._state.is_error():
                return result
            why = _reason(self._state)
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
        self._state = self._compiled.alone()
        text = self._tokens[: len(self._tokens) - self._ended]
        if careful:
            for token in text:
                self._state.compute_bitmask()
                self._state.consume_token(token)
        else:
            self._state.consume_tokens(text)
        return not self._state.is_error()

    def _forget(self) -> None:
        self._state = self._compiled.copy()
        self._tokens.clear()


def _vocabulary(tokenizer_json: str | bytes, size: int, end_token_ids: Sequence[int]) -> _Vocabulary:
    end_token_ids = [token for token in end_token_ids if 0 <= token < size]
    if not end_token_ids:
        raise StructureUnsupportedError("structures need a model with an end token, but it names none")
    text = tokenizer_json.decode() if isinstance(tokenizer_json, bytes) else tokenizer_json
    try:
        known = LLTokenizer(text.strip())  # what does not begin with a brace would be a path
    except ValueError as error:
        raise StructureUnsupportedError(f"structures need a tokenizer of bytes: {error}") from error
    tokens = [b""] * size
    for token in range(min(size, known.vocab_size)):
        if token not in end_token_ids and not known.is_special_token(token):
            tokens[token] = known.decode_bytes([token])
    end = np.zeros(size, np.bool_)
    end[list(end_token_ids)] = True
    is_text = np.array([bool(token) for token in tokens], np.bool_)
    return _Vocabulary(LLTokenizer(_Tokens(tokens, end_token_ids[0])), is_text, end)


def _grammar(structure: Structure) -> str:
    """The structure as the library's list of grammars, in JSON."""
    source = structure.source
    try:
        length = len(source.encode())
    except UnicodeEncodeError as error:
        raise InvalidStructureError("must be Unicode text, but has half a surrogate pair") from error
    most = MAX_GRAMMAR_BYTES if structure.kind is StructureKind.GRAMMAR else MAX_SOURCE_BYTES
    if length > most:
        raise InvalidStructureError(f"must have at most {most} bytes, but has {length}")
    body: dict[str, Any]
    match structure.kind:
        case StructureKind.JSON_SCHEMA:
            body = {"json_schema": _schema(source)}
        case StructureKind.REGEX:
            _check_regexes([source])
            body = {"lark_grammar": f"start: /{regex_to_lark(source)}/"}
        case StructureKind.CHOICE:
            body = {"lark_grammar": f"start: /{'|'.join(_escaped(choice) for choice in _choices(source))}/"}
        case StructureKind.GRAMMAR:
            _check_lark(source)
            body = {"lark_grammar": source}
    try:
        return json.dumps({"grammars": [{"lark_grammar": _TOP}, {"name": "structure", **body}]})
    except RecursionError as error:
        raise InvalidStructureError("must be JSON of fewer levels") from error


def _schema(source: str) -> dict[str, Any] | bool:
    schema = _json(source)
    if isinstance(schema, bool):
        if not schema:
            return schema  # which the library refuses in better words
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidStructureError("must be a JSON schema, an object or a boolean")
    if "x-guidance" in schema:  # it may switch off what it cannot enforce
        raise InvalidStructureError("must not have x-guidance, which is no part of JSON Schema")
    try:
        _check_regexes(_patterns(schema))
    except RecursionError as error:
        raise InvalidStructureError("must be JSON of fewer levels") from error
    return schema | {"x-guidance": {"whitespace_pattern": _JSON_WHITESPACE}}


def _choices(source: str) -> list[str]:
    choices = _json(source)
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise InvalidStructureError("must be a JSON array of strings, at least one")
    return choices


def _json(source: str) -> Any:
    try:
        return json.loads(source)
    except ValueError as error:
        raise InvalidStructureError(f"must be JSON: {error}") from error
    except RecursionError as error:
        raise InvalidStructureError("must be JSON of fewer levels") from error


def _escaped(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidStructureError("must be Unicode text, but has half a surrogate pair")
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def _check_regexes(regexes: Iterable[str]) -> None:
    """The library's time and memory are quadratic in one regex: 8,000 times ``a?`` take 290 MB, 30,000 take 3.5 GB."""
    length = sum(len(regex.encode()) for regex in regexes)
    if length > MAX_REGEX_BYTES:
        raise InvalidStructureError(f"must have regexes of at most {MAX_REGEX_BYTES} bytes in all, but has {length}")


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _patterns(item)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "pattern" and isinstance(value, str):
                yield value
            elif key == "patternProperties" and isinstance(value, dict):
                yield from value
            yield from _patterns(value)


def _check_lark(source: str) -> None:
    """Text alone, and no terminal that is too long a regex with all it refers to: 40 lines can double one 40 times."""
    own: dict[str, int] = {"": 0}
    refers: dict[str, list[str]] = {"": []}
    current = ""
    for found in _LARK_TOKEN.finditer(source):
        if found["refused"]:
            line = source.count("\n", 0, found.start()) + 1
            raise InvalidStructureError(f"must describe text alone, but has {found['refused'][:80]} in line {line}")
        if found["literal"] == '"x-guidance"':
            raise InvalidStructureError("must not have x-guidance, which is no part of JSON Schema")
        if found["defined"]:
            current = found["name"]
            own.setdefault(current, 0)
            refers.setdefault(current, [])
        elif found["literal"]:
            own[current] += len(found["literal"].encode())
        elif found["name"] and found["name"].isupper():
            refers[current].append(found["name"])
            own[current] += 1
    try:
        order = list(TopologicalSorter(refers).static_order())
    except CycleError:
        return  # the library says where
    for name in order:
        own[name] = own.get(name, 0) + sum(own[other] for other in refers.get(name, ()))
        if own[name] > MAX_REGEX_BYTES:
            raise InvalidStructureError(f"must have at most {MAX_REGEX_BYTES} bytes of literals in {name or 'all'}")


def _probe(compiled: _Compiled, vocabulary: _Vocabulary) -> None:
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
        raise InvalidStructureError(f"cannot be speculated on: {_reason(state)}")


def _reason(state: LLMatcher, kind: StructureKind | None = None) -> str:
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
