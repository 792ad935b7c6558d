"""Sessions: a pure state machine over committed tokens. No I/O, no clock of its own, no peers.

::

    IDLE --begin_turn--> RUNNING --commit*--> RUNNING --end_turn--> IDLE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from orchestrator.errors import AcceptanceFixedError, SessionBusyError
from orchestrator.sessions.conversation.next_prompt import NextPrompt, Said
from orchestrator.sessions.conversation.text import Codec, Detokenizer, Message
from slipstream.sampling.rule import Acceptance, SamplingRule


class FinishReason(Enum):
    """Why a turn ended."""

    END_TOKEN = "end_token"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    CONTEXT_LENGTH = "context_length"
    CANCELLED = "cancelled"


ENDED_WITH_END_TOKEN = (FinishReason.END_TOKEN, FinishReason.STOP_TOKEN)
"""The last of the turn's tokens may be one that the chat template would put there."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Where a turn ends, besides one of the model's end tokens. The stop tokens are among the
    rule's end tokens too."""

    max_token_count: int
    context_length: int
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    """Whether the text holds the stop string or stop token that ended the turn."""


class Commit(NamedTuple):
    """What one round added: tokens, for each of them the text that it made certain, and why the
    turn ended if it did."""

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    finish_reason: FinishReason | None


class Answer:
    """One answer in the making."""

    def __init__(self, session: Session, prompt_length: int, rule: SamplingRule, limits: TurnLimits) -> None:
        self.prompt_length = prompt_length
        self.rule = rule
        self.limits = limits
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self._session = session
        self._detokenizer = Detokenizer(
            session.codec, limits.stop_strings, include_stop=limits.include_stop, exact=rule.structure is not None
        )

    @property
    def generated_count(self) -> int:
        """Tokens committed in this turn."""
        return len(self._session.tokens) - self.prompt_length

    @property
    def room(self) -> int:
        """How many more tokens this turn may commit."""
        return min(
            self.limits.max_token_count - self.generated_count,
            self.limits.context_length - len(self._session.tokens),
        )

    def commit(self, tokens: Sequence[int]) -> Commit:
        """Append a round's tokens up to the one that ends the turn; the rest is dropped."""
        assert self.finish_reason is None, "the turn has ended"
        texts: list[str] = []
        committed, room = self._session.tokens, self.room
        for token in tokens:
            committed.append(token)
            room -= 1
            texts.append(self._take(token, room))
            if self.finish_reason is not None:
                break
        self.text += "".join(texts)
        return Commit(tuple(tokens[: len(texts)]), tuple(texts), self.finish_reason)

    def cut_short(self) -> str:
        """End the turn where it stands, if it has not ended; returns the text that had been held
        back."""
        if self.finish_reason is not None:
            return ""
        self.finish_reason = FinishReason.CANCELLED
        text = self._detokenizer.flush()
        self.text += text
        return text

    def _take(self, token: int, room: int) -> str:
        if token in self.limits.stop_token_ids:
            self.finish_reason = FinishReason.STOP_TOKEN
            shown = self._session.codec.token_text(token) if self.limits.include_stop else ""
            return self._detokenizer.flush() + shown
        if token in self.rule.ends:
            self.finish_reason = FinishReason.END_TOKEN
            return self._detokenizer.flush()
        text, stopped = self._detokenizer.push(token)
        if stopped:
            self.finish_reason = FinishReason.STOP_STRING
        elif room <= 0:
            is_long = self.generated_count >= self.limits.max_token_count
            self.finish_reason = FinishReason.MAX_TOKENS if is_long else FinishReason.CONTEXT_LENGTH
            text += self._detokenizer.flush()
        return text


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A turn that has ended: what it did to its session. Without ``tokens`` it was undone."""

    shared_count: int
    """How many of its prompt's tokens were the session's before."""
    prompt: Sequence[int]
    """The others."""
    content: str | None
    """The user's message."""
    tokens: Sequence[int]
    """Generated."""
    text: str
    """All that was said."""
    acceptance: Acceptance
    ended_with_end_token: bool


class Session:
    """One conversation. ``tokens`` are the committed tokens: the only state that matters."""

    def __init__(self, session_id: str, codec: Codec, clock: datetime, system: str | None = None) -> None:
        """``clock`` is what the chat template takes for now in all turns: a prompt must not depend
        on the day."""
        self.id = session_id
        self.codec = codec
        self.clock = clock
        self.messages = [] if system is None else [Message("system", system)]
        self.answers: list[Said] = []
        """The tokens of the assistant's messages, in their order."""
        self.tokens: list[int] = []
        self.turn_count = 0
        """Turns begun, undone ones included: a number always means the same turn."""
        self.answer: Answer | None = None
        self.acceptance: Acceptance | None = None
        """That of the first turn, and so of all: the two kinds are never mixed within a session."""
        self._snapshot: tuple[list[int], list[Message], Acceptance | None] | None = None

    def prompt_for(self, content: str) -> NextPrompt:
        """What a user message would start its turn with, as long as no other turn begins."""
        messages = (*self.messages, Message("user", content))
        return NextPrompt(self.codec, self.clock, messages, tuple(self.answers), self.tokens, self.turn_count)

    def begin_turn(
        self, prompt: list[int], rule: SamplingRule, limits: TurnLimits, content: str | None = None
    ) -> Answer:
        """Start a turn on a prompt that includes everything before it; ``content`` is the user
        message, if there is one.

        SessionBusyError if a turn is running; AcceptanceFixedError if earlier turns had the other
        acceptance.
        """
        if self.answer is not None:
            raise SessionBusyError(f"session {self.id} has turn {self.turn_count} running", turn=self.turn_count)
        if self.acceptance not in (None, rule.acceptance):
            raise AcceptanceFixedError(
                f"session {self.id} began with acceptance {self.acceptance.name} and keeps it", session_id=self.id
            )
        self._snapshot = (self.tokens, list(self.messages), self.acceptance)
        self.acceptance = rule.acceptance
        self.tokens = list(prompt)
        if content is not None:
            self.messages.append(Message("user", content))
        self.turn_count += 1
        self.answer = Answer(self, len(prompt), rule, limits)
        return self.answer

    def end_turn(self) -> None:
        """Keep the turn's answer, or undo the turn if it has none."""
        assert self.answer is not None and self._snapshot is not None, "no turn is running"
        answer, self.answer = self.answer, None
        if answer.generated_count == 0:
            self.tokens, self.messages, self.acceptance = self._snapshot
        else:
            self._add_answer(
                answer.text, self.tokens[answer.prompt_length :], answer.finish_reason in ENDED_WITH_END_TOKEN
            )
        self._snapshot = None

    def replay_turn(self, past: PastTurn) -> None:
        """Take over a turn that has ended before: it becomes what it made of the session then."""
        self.turn_count += 1
        if not past.tokens:  # it was undone
            return
        self.tokens = [*self.prompt_of(past.shared_count, past.prompt), *past.tokens]
        if past.content is not None:
            self.messages.append(Message("user", past.content))
        self._add_answer(past.text, past.tokens, past.ended_with_end_token)
        self.acceptance = past.acceptance

    def _add_answer(self, text: str, tokens: Sequence[int], ended_with_end_token: bool) -> None:
        self.messages.append(Message("assistant", text))
        self.answers.append(Said(tuple(tokens), ended_with_end_token))

    def prompt_of(self, shared_count: int, rest: Sequence[int]) -> list[int]:
        """A prompt that begins with that many of the session's tokens."""
        return [*self.tokens[:shared_count], *rest]

    def forget(self) -> None:
        """Nothing follows: tokens and messages are needed no more."""
        assert self.answer is None, "a turn is running"
        self.tokens, self.messages, self.answers = [], [], []


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
