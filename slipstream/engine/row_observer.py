"""The seam for an observer of a target's rows: where it chose, what it chose, and from which
logits."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as TokenSequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from slipstream.engine.sequence import Sequence
from slipstream.sampling.coupled import accepted_count
from slipstream.sampling.row import VOID

if TYPE_CHECKING:
    from slipstream.engine.engine import Append, Appended
    from slipstream.engine.multi_step import MultiStepRun
    from slipstream.sampling.blocks import BlockedLogits


class ObservedRows(NamedTuple):
    """Consecutive rows of a sequence, each after tokens that the target has chosen or was given.

    Row i chose ``choices[i]`` for position ``position + i``. ``hint[i]`` stood there; the hint may
    have fewer tokens than there are rows. The next forward may overwrite the ``logits``.
    """

    sequence: Sequence
    position: int
    hint: TokenSequence[int]
    choices: TokenSequence[int]
    logits: BlockedLogits


class RowObserver(Protocol):
    """An observer of rows. The engine calls it on its own thread and waits for it. It raises
    nothing, and changes nothing that it is shown."""

    def watches(self, sequence: Sequence) -> bool:
        """Return whether the observer wants a sequence's rows. A multi-step run then keeps the
        logits of its steps."""

    def observe(self, rows: ObservedRows) -> None:
        """Receive rows of a watched sequence."""


def watches_any(observer: RowObserver | None, sequences: Iterable[Sequence]) -> bool:
    """Return whether the observer, if there is one, wants rows of any of these sequences."""
    return observer is not None and any(map(observer.watches, sequences))


def tell_step(
    observer: RowObserver,
    appends: TokenSequence[Append],
    answers: TokenSequence[Appended],
    logits: BlockedLogits,
) -> None:
    """Show the observer the rows of a step: those up to the first wrong hint token of each
    sequence. What comes after it was computed for a text that will not be."""
    end = 0
    for append, answer in zip(appends, answers, strict=True):
        end += append.row_count
        position = len(append.sequence) - append.wanted + 1
        if not append.wanted or answer.error is not None or position > append.committed_length:
            continue
        if observer.watches(append.sequence):
            hint = append.sequence.tokens[position:]
            choices = _usable(hint, [choice.token for choice in answer.choices])
            first = end - append.wanted
            rows = logits.subset(range(first, first + len(choices)))
            if choices:
                observer.observe(ObservedRows(append.sequence, position, hint[: len(choices)], choices, rows))


def tell_run_steps(observer: RowObserver, run: MultiStepRun, first: int, kept: TokenSequence[BlockedLogits]) -> None:
    """Show the observer the rows of a multi-step run's last steps, from the step ``first`` on, once
    the run has recorded them."""
    for at, (sequence, choices) in enumerate(zip(run.sequences, run.choices(), strict=True)):
        if not observer.watches(sequence):
            continue
        start = run.positions[at] - run.step_count
        for step, (choice, logits) in enumerate(zip(choices[first:], kept, strict=False), first):
            position = start + step
            if choice.token != VOID:
                observer.observe(ObservedRows(sequence, position, (), (choice.token,), logits.subset([at])))


def _usable(hint: TokenSequence[int], choices: list[int]) -> list[int]:
    """Return the choices that follow right hint tokens only, up to one that could not be made."""
    usable = choices[: 1 + accepted_count(hint, choices)]
    return usable[: usable.index(VOID)] if VOID in usable else usable
