"""Sequences of the simulated draft and verifier: runs with hints, and guesses that go on. Pure.

Only the sums of tokens are kept. The paper model's next token is the sum plus the position, so a
token costs one addition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from draft_service.worth import SEND_SECONDS
from slipstream.engine.arithmetic import ArithmeticSettings, next_token
from slipstream.engine.hinting.calibration import LEAST_SURVIVAL
from slipstream.engine.hinting.hints import MOST_TOKENS
from slipstream.engine.hinting.horizon import least_survival
from slipstream.rpc.wire import duration, set_duration
from slipstream.wire.v1 import draft_pb2, hint_pb2, model_pb2, verifier_pb2

PLAIN = ArithmeticSettings(ends=0)
"""The target. No token ends a text."""


class Handle:
    """Sums of a sequence's tokens: ``sums[n]`` is that of the first n."""

    def __init__(self) -> None:
        self.sums = [0]

    @property
    def length(self) -> int:
        """Tokens of the sequence."""
        return len(self.sums) - 1

    def state(self, base_length: int, tail: Sequence[int]) -> None:
        """Keep ``base_length`` tokens, and append the ``tail``."""
        del self.sums[base_length + 1 :]
        self.append(tail)

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        total = self.sums[-1]
        for token in tokens:
            total += token
            self.sums.append(total)

    def token(self, position: int) -> int:
        """Return the token at a position."""
        return self.sums[position + 1] - self.sums[position]

    def choose(self, hint: Sequence[int]) -> list[int]:
        """Append and return the target's choices in a step that verifies ``hint``: the right tokens
        and one more."""
        chosen: list[int] = []
        total, position = self.sums[-1], self.length
        for hinted in (*hint, None):
            token = next_token(total, position, PLAIN)
            chosen.append(token)
            total += token
            position += 1
            self.sums.append(total)
            if token != hinted:
                break
        return chosen


def draft_token(total: int, position: int, agreement: float) -> int:
    """Return the draft's choice after tokens with this sum. A hash of both decides whether it is
    the target's."""
    token = next_token(total, position, PLAIN)
    if ((total * 2654435761 + position * 40503) >> 7) % 100_003 / 100_003 >= agreement:
        token = 3 + (token + 1) % (PLAIN.vocabulary - 3)
    return token


class HintedRun:
    """A run that goes on by itself. It verifies the newest hint that agrees with its text."""

    def __init__(self, item: verifier_pb2.RunItem, handle: Handle) -> None:
        """``handle`` holds what the item states."""
        self.item, self._handle = item, handle
        self._granted = item.start.granted_length
        self._is_first = True
        self._hint: hint_pb2.Hint | None = None
        self._longest_hold = item.start.longest_hold.ToNanoseconds() / 1e9
        self._held_since = 0.0

    def grant(self, granted_length: int) -> None:
        """Let it go on to a greater length."""
        self._granted = max(self._granted, granted_length)

    def hint(self, hint: hint_pb2.Hint) -> None:
        """Keep a hint instead of the one before, unless it contradicts the text or is used up."""
        if self._is_usable(hint):
            self._hint = hint

    @property
    def has_ended(self) -> bool:
        """True at the run's length."""
        return self._handle.length >= self.item.start.until_length

    @property
    def may_step(self) -> bool:
        """True below the granted length."""
        return self._handle.length < min(self._granted, self.item.start.until_length)

    def held_until(self, now: float) -> float:
        """Return the time until which a run of a fixed length waits for a longer hint; 0 if it
        steps."""
        wanted = min(self.item.start.fixed_hint_count, self._room)
        if len(self._next()) >= wanted or (self._hint is not None and not self._hint.HasField("next_due")):
            return 0.0
        self._held_since = self._held_since or now
        until = self._held_since + self._longest_hold
        return until if until > now else 0.0

    def step(self, began: float, ended: float, batch: int) -> verifier_pb2.RunResult:
        """Choose tokens in a step of ``batch`` runs, between two times in seconds."""
        position, hint = self._handle.length, self._next()
        tokens = self._handle.choose(hint)
        held = began - self._held_since if self._held_since else 0.0
        prefilled = len(self.item.start.tail) if self._is_first else 0
        self._is_first, self._held_since = False, 0.0
        if self._hint is not None and not self._is_usable(self._hint):
            self._hint = None
        forward = duration(ended - began)
        return verifier_pb2.RunResult(
            handle=self.item.handle,
            round=self.item.round,
            position=position,
            tokens=tokens,
            steps=[_step_message(len(tokens), len(hint), forward, held)],
            prefilled_count=prefilled,
            end=verifier_pb2.RUN_END_UNTIL if self.has_ended else verifier_pb2.RUN_END_UNSPECIFIED,
            timing=model_pb2.ItemTiming(
                forward=forward, total=duration(ended - began + held), forward_count=1, step_token_count=batch
            ),
        )

    def _is_usable(self, hint: hint_pb2.Hint) -> bool:
        """Return whether a hint agrees with the text and goes on after it."""
        length, tokens = self._handle.length, hint.tokens
        passed = tokens[: max(0, length - hint.start)]
        return len(passed) < len(tokens) and all(
            token == self._handle.token(position) for position, token in enumerate(passed, hint.start)
        )

    @property
    def _room(self) -> int:
        """Hint tokens for which the granted length has room, with a choice behind them."""
        return min(self._granted, self.item.start.until_length) - self._handle.length - 1

    def _next(self) -> Sequence[int]:
        """Return the hint tokens that the next step verifies."""
        if self._hint is None or self._hint.start > self._handle.length:
            return ()
        most = min(self._room, self.item.start.fixed_hint_count or MOST_TOKENS)
        passed = self._handle.length - self._hint.start
        return self._hint.tokens[passed : passed + most]


def _step_message(token_count: int, hint_count: int, forward: Any, held: float) -> verifier_pb2.RunStep:
    return verifier_pb2.RunStep(
        token_count=token_count,
        hint_count=hint_count,
        accepted_count=token_count - 1,
        source=hint_pb2.HINT_SOURCE_DRAFT if hint_count else hint_pb2.HINT_SOURCE_UNSPECIFIED,
        forward=forward,
        held=duration(held) if held else None,
    )


class Guess:
    """A line of guesses past the committed tokens."""

    def __init__(self, item: draft_pb2.DraftItem, handle: Handle, agreement: float, step_seconds: float) -> None:
        """``handle`` holds what the item states."""
        self.item, self._handle = item, handle
        self._agreement, self._step_seconds = agreement, step_seconds
        self._price = item.start.price
        self._line: list[int] = []
        self._sum = handle.sums[-1]
        """Sum of the committed tokens and the line."""
        self.unsent = 0
        """Tokens of the line that no hint has had."""

    def commit(self, commit: draft_pb2.CommitTokens) -> None:
        """Take in what the target has chosen. The line stays if it says the same."""
        self._price = commit.price
        added = commit.tokens[self._handle.length - commit.position :]
        self._handle.append(added)
        if self._line[: len(added)] == list(added):
            del self._line[: len(added)]
            self.unsent = min(self.unsent, len(self._line))
        else:
            self._line.clear()
            self._sum, self.unsent = self._handle.sums[-1], 0

    @property
    def wanted(self) -> int:
        """Tokens to guess until the next ones are not worth their steps."""
        least = max(LEAST_SURVIVAL, least_survival(self._price, self._step_seconds))
        depth = MOST_TOKENS if self._agreement >= 1 else int(math.log(least) / math.log(max(self._agreement, 1e-9)))
        depth = max(depth, self.item.start.least_length, 1)
        room = self.item.start.until_length - self._handle.length
        return min(depth, MOST_TOKENS, room) - len(self._line)

    def extend(self, count: int) -> None:
        """Guess so many tokens."""
        for _ in range(count):
            token = draft_token(self._sum, self._handle.length + len(self._line), self._agreement)
            self._line.append(token)
            self._sum += token
        self.unsent += count

    @property
    def is_due(self) -> bool:
        """True if a hint is to be sent: the first of a line at once, later ones every few steps or
        at its end."""
        is_new = self.unsent == len(self._line) or self.unsent * self._step_seconds >= SEND_SECONDS
        return self.unsent > 0 and (is_new or self.wanted <= 0)

    def result(self) -> draft_pb2.DraftResult:
        """Return the line as a hint."""
        count, seconds = len(self._line), duration(self._step_seconds)
        timing = model_pb2.ItemTiming(forward_count=self.unsent)
        for field in (timing.forward, timing.total):
            set_duration(field, self.unsent * self._step_seconds)
        self.unsent = 0
        hint = hint_pb2.Hint(
            start=self._handle.length,
            tokens=self._line,
            survivals=[self._agreement**power for power in range(1, count + 1)],
            source=hint_pb2.HINT_SOURCE_DRAFT,
            source_id=1,
            length_seen=self._handle.length,
            next_due=seconds if self.wanted > 0 else None,
        )
        return draft_pb2.DraftResult(handle=self.item.handle, round=self.item.round, hints=[hint], timing=timing)
