"""A conversation as a pure state machine over committed tokens. No I/O, no clock, no peers.

::

    IDLE --begin_turn--> RUNNING --commit*--> RUNNING --end_turn--> IDLE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from orchestrator.errors import AcceptanceFixedError, SessionBusyError
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.detokenizer import Detokenizer
from orchestrator.sessions.conversation.messages import NO_OPTIONS, Message, TemplateOptions
from orchestrator.sessions.conversation.turn_limits import (
    ENDED_WITH_END_TOKEN,
    Commit,
    FinishReason,
    PastTurn,
    TurnLimits,
)
from slipstream.sampling.rule import Acceptance, SamplingRule


class Answer:
    """The answer that a running turn generates."""

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
        """Number of tokens committed in this turn."""
        return len(self._session.tokens) - self.prompt_length

    @property
    def room(self) -> int:
        """Number of tokens that this turn may still commit."""
        return min(
            self.limits.max_token_count - self.generated_count,
            self.limits.context_length - len(self._session.tokens),
        )

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the turn; None if none did."""
        return self._detokenizer.stop_string if self.finish_reason is FinishReason.STOP_STRING else None

    def commit(self, tokens: Sequence[int]) -> Commit:
        """Append a round's tokens up to the one that ends the turn; drop the rest."""
        assert self.finish_reason is None, "the turn has ended"
        texts: list[str] = []
        committed, room = self._session.tokens, self.room
        for token in tokens:
            committed.append(token)
            room -= 1
            texts.append(self._text_of(token, room))
            if self.finish_reason is not None:
                break
        self.text += "".join(texts)
        return Commit(tuple(tokens[: len(texts)]), tuple(texts), self.finish_reason)

    def cut_short(self) -> str:
        """End the turn at its last token, if it has not ended. Returns the text held back so
        far."""
        if self.finish_reason is not None:
            return ""
        self.finish_reason = FinishReason.CANCELLED
        text = self._detokenizer.flush()
        self.text += text
        return text

    def _text_of(self, token: int, room: int) -> str:
        """Return the text that a token makes certain, and note whether it ends the turn."""
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
class AnswerTokens:
    """The tokens of one answer as the model generated them."""

    tokens: tuple[int, ...]
    ended_with_end_token: bool


class RenderedPrefix(NamedTuple):
    """A rendered prompt by its length and digest: enough to find it at the start of another."""

    length: int
    digest: bytes


ANOTHER_PROMPT = RenderedPrefix(0, b"")
"""The prefix of no prompt: the next prompt does not go on after the tokens of the last one."""


class Snapshot(NamedTuple):
    """The state of a session before a turn, which undoing the turn restores."""

    tokens: list[int]
    messages: list[Message]
    answers: list[AnswerTokens | None]
    acceptance: Acceptance | None
    rendered: RenderedPrefix | None
    is_private: bool


class Session:
    """One conversation. Its committed ``tokens`` are the only state that its text depends on."""

    def __init__(
        self,
        session_id: str,
        codec: Codec,
        clock: datetime,
        system: str | None = None,
        options: TemplateOptions = NO_OPTIONS,
    ) -> None:
        """``clock`` is the time that the chat template reads in all turns: a prompt must not depend
        on the day. ``options`` are what it reads besides the messages."""
        self.id = session_id
        self.codec = codec
        self.clock = clock
        self.options = options
        self.messages = [] if system is None else [Message("system", system)]
        self.answers: list[AnswerTokens | None] = []
        """The tokens of the assistant's messages, in their order. None if the caller wrote one."""
        self.tokens: list[int] = []
        self.turn_count = 0
        """Number of turns begun, undone ones included: a number always means the same turn."""
        self.answer: Answer | None = None
        self.acceptance: Acceptance | None = None
        """Acceptance of the first turn, and so of all: a session never mixes the two kinds."""
        self.is_private = False
        """True if one of its turns may not be collected, and so all that follow it: they restate
        what it said."""
        self.rendered: RenderedPrefix | None = None
        """The last turn's rendered prompt; None if this process has not rendered it."""
        self._snapshot: Snapshot | None = None

    def begin_turn(
        self,
        prompt: list[int],
        rule: SamplingRule,
        limits: TurnLimits,
        said: Sequence[Message] = (),
        rendered: RenderedPrefix | None = None,
        *,
        is_private: bool = False,
    ) -> Answer:
        """Start a turn on a prompt that includes everything before it.

        ``said`` are the new messages, and ``rendered`` is the text of the prompt. A turn that
        ``is_private`` may not be collected.
        SessionBusyError if a turn is running; AcceptanceFixedError if earlier turns had the other
        acceptance.
        """
        if self.answer is not None:
            raise SessionBusyError(f"session {self.id} has turn {self.turn_count} running", turn=self.turn_count)
        if self.acceptance not in (None, rule.acceptance):
            raise AcceptanceFixedError(
                f"session {self.id} began with acceptance {self.acceptance.name} and keeps it", session_id=self.id
            )
        self._snapshot = Snapshot(
            self.tokens, list(self.messages), list(self.answers), self.acceptance, self.rendered, self.is_private
        )
        self.acceptance = rule.acceptance
        self.is_private |= is_private
        self.tokens = list(prompt)
        self.rendered = rendered
        self._add_messages(said)
        self.turn_count += 1
        self.answer = Answer(self, len(prompt), rule, limits)
        return self.answer

    def end_turn(self) -> None:
        """Keep the turn's answer, or undo the turn if it has none."""
        assert self.answer is not None and self._snapshot is not None, "no turn is running"
        answer, self.answer = self.answer, None
        if answer.generated_count == 0:
            before = self._snapshot
            self.tokens, self.messages, self.answers = before.tokens, before.messages, before.answers
            self.acceptance, self.rendered, self.is_private = before.acceptance, before.rendered, before.is_private
        else:
            self._add_answer(
                answer.text, self.tokens[answer.prompt_length :], answer.finish_reason in ENDED_WITH_END_TOKEN
            )
        self._snapshot = None

    def replay_turn(self, past: PastTurn) -> None:
        """Apply a turn that has ended before, with the same effect that it had then."""
        self.turn_count += 1
        if not past.tokens:  # it was undone
            return
        self.tokens = [*self.prompt_of(past.shared_count, past.prompt), *past.tokens]
        self._add_messages(past.said)
        self._add_answer(past.text, past.tokens, past.ended_with_end_token)
        self.acceptance = past.acceptance
        self.is_private |= past.is_private
        self.rendered = None

    def _add_messages(self, said: Sequence[Message]) -> None:
        self.messages += said
        self.answers += [None for message in said if message.role == "assistant"]

    def _add_answer(self, text: str, tokens: Sequence[int], ended_with_end_token: bool) -> None:
        self.messages.append(Message("assistant", text))
        self.answers.append(AnswerTokens(tuple(tokens), ended_with_end_token))

    def prompt_of(self, shared_count: int, rest: Sequence[int]) -> list[int]:
        """Return a prompt that begins with that many of the session's tokens."""
        return [*self.tokens[:shared_count], *rest]

    def clear(self) -> None:
        """Drop tokens and messages: no turn follows."""
        assert self.answer is None, "a turn is running"
        self.tokens, self.messages, self.answers = [], [], []


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many leading tokens two sequences share."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
