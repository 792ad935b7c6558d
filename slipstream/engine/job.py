"""A job: what one item asks of the model, as a state machine the model thread steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass, field

from slipstream.engine.errors import ContextExceededError, InvalidItemError
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.sampling.coupled import Choice
from slipstream.sampling.rule import SamplingRule


@dataclass(slots=True)
class JobTiming:
    """Seconds on this process's monotonic clock, and the wall clock for spans."""

    arrived_unix_ns: int = field(default_factory=time.time_ns)
    arrived: float = field(default_factory=time.monotonic)
    started: float | None = None
    """Of the first forward."""
    forward: float = 0.0
    """Sum over the forwards this job took part in, choosing included."""
    finished: float = 0.0

    @property
    def queue(self) -> float:
        """Seconds from arrival to the first forward."""
        return (self.finished if self.started is None else self.started) - self.arrived

    @property
    def total(self) -> float:
        """Seconds from arrival to the result."""
        return self.finished - self.arrived


@dataclass(frozen=True, slots=True)
class Statement:
    """Where a request says the sequence stands: keep ``base_length`` tokens, then come the committed tokens ``tail``."""

    base_length: int
    tail: TokenSequence[int]

    @property
    def committed_length(self) -> int:
        """Length of the committed tokens after this statement."""
        return self.base_length + len(self.tail)


class Job:
    """Append the statement's tail and some uncommitted tokens, choose after the last ``wanted`` of them, maybe go on.

    A subclass says in `advance` what the choices mean. It reads its result from itself once that returned True.
    """

    def __init__(
        self,
        sequence: Sequence,
        statement: Statement,
        uncommitted: TokenSequence[int],
        rule: SamplingRule,
        *,
        wanted: int,
        length_limit: int,
    ) -> None:
        """``length_limit`` is the longest the sequence may become while this job runs."""
        self.sequence = sequence
        self.statement = statement
        self.rule = rule
        self.pending = [*statement.tail, *uncommitted]
        self.wanted = wanted
        self.choices: list[Choice] = []
        self.timing = JobTiming()
        self.prefilled_count = 0
        self.overtaken = False
        self._length_limit = length_limit

    def advance(self, choices: list[Choice]) -> bool:
        """Take the ``wanted`` choices. True if the job is done; else ``pending`` and ``wanted`` are set anew."""
        raise NotImplementedError

    def begin(self, cache: SequenceCache, context_length: int, vocabulary_size: int) -> None:
        """Bring the sequence to the stated position. ContextExceededError, InvalidItemError or SequenceTooShortError."""
        if not self.statement.tail:
            raise InvalidItemError("tail must hold at least one committed token", field="tail")
        if self.statement.base_length < 0:
            raise InvalidItemError("base_length must be 0 or more", field="base_length")
        for token in self.pending:
            if not 0 <= token < vocabulary_size:
                raise InvalidItemError(f"token id {token} is not from 0 to {vocabulary_size - 1}", field="tail")
        if not all(0 <= token < vocabulary_size for token in self.rule.end_token_ids):
            raise InvalidItemError(f"end token ids must be from 0 to {vocabulary_size - 1}", field="rule.end_token_ids")
        if self._length_limit > context_length:
            raise ContextExceededError(
                f"{self._length_limit} tokens do not fit into the context of {context_length}",
                context_length=context_length,
            )
        cache.truncate(self.sequence, self.statement.base_length)
        adopted = cache.adopt_prefix(self.sequence, self.statement.tail)
        self.prefilled_count = len(self.statement.tail) - adopted
        del self.pending[:adopted]

    def take(self, count: int) -> int:
        """Move ``count`` pending tokens into the sequence's step; returns how many choices that step owes."""
        del self.pending[:count]
        return max(0, self.wanted - len(self.choices) - len(self.pending))


Finished = Callable[[list[tuple["Job", Exception | None]]], None]
"""Told after each step which jobs ended, and with what error if they failed. Called on the model thread."""
