"""The prompt of new messages: the ids of the rendered conversation. Generated tokens stay as they
were. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from orchestrator.sessions.conversation.codec import Codec, Encoded
from orchestrator.sessions.conversation.messages import NO_OPTIONS, Message, TemplateOptions
from orchestrator.sessions.conversation.session import AnswerTokens, RenderedPrefix, Session

_PIECE_SPACE = "▁"
"""The space that an answer's first token may begin with although the text does not: decoders strip
it."""

_LEADING = 8
"""Number of an answer's tokens that are looked at for spaces at its beginning."""


@dataclass(slots=True)
class NextPrompt:
    """New messages after a session's others, from which its tokens can be made on any thread."""

    codec: Codec
    clock: datetime
    messages: tuple[Message, ...]
    """The session's messages and the new ones, which are the last."""
    answers: tuple[AnswerTokens | None, ...]
    """The tokens of the assistant's messages, in their order. None if the caller wrote one."""
    before: Sequence[int]
    """The session's committed tokens."""
    turn_count: int
    """The number of turns that the session had begun when this was made."""
    last_rendered: RenderedPrefix | None = None
    """The prompt of the session's last turn, if this process has rendered it."""
    new_count: int = 1
    """Number of new messages."""
    options: TemplateOptions = NO_OPTIONS
    """Tools and variables that the chat template reads."""
    rendered: RenderedPrefix | None = None
    """The text of the prompt, once `tokens` has rendered it."""

    @property
    def length(self) -> int:
        """The length in characters."""
        return self.options.length + sum(message.length for message in self.messages)

    def tokens(self) -> list[int]:
        """Return the committed tokens that the turn would start with.

        They are the ids of the whole rendered conversation. An answer's generated tokens take the
        place of the ids of its text, as far as the text is there and a token ends where they end.
        While the template only appends, all tokens before the last answer stay as they were, too.
        """
        messages = self._rendered_messages()
        whole = self.codec.render_with_places(messages, self.clock, self.options)
        rendered = whole.text
        self.rendered = _prefix(rendered, len(rendered))
        earlier = messages[: -self.new_count]
        if earlier and earlier[-1].role == "assistant":
            start = self._start_of_answer(rendered, earlier[:-1])
            appended = None if start is None else self._appended(rendered, start)
            if appended is not None:
                return appended
        return self._replaced(self.codec.encode_with_places(rendered), messages, whole.places)

    def _start_of_answer(self, rendered: str, before: Sequence[Message]) -> int | None:
        """Return where the last answer begins: the length of the last turn's rendered prompt, which
        has the messages ``before`` it. None if the template changed that prompt.

        The prompt is rendered again only if this process has not rendered it for the last turn.
        """
        last = self.last_rendered
        if last is not None:
            return last.length if _prefix(rendered, last.length) == last else None
        earlier = self.codec.render(before, self.clock, self.options)
        return len(earlier) if rendered.startswith(earlier) else None

    def _rendered_messages(self) -> list[Message]:
        """Return the messages without the end tokens that the template writes itself."""
        answers = iter(self.answers)
        return [self._without_end(m, next(answers)) if m.role == "assistant" else m for m in self.messages]

    def _without_end(self, message: Message, said: AnswerTokens | None) -> Message:
        if said is None or not (said.ended_with_end_token and said.tokens):
            return message
        return Message(message.role, message.content.removesuffix(self.codec.token_text(said.tokens[-1])))

    def _appended(self, rendered: str, start: int) -> list[int] | None:
        """Return the tokens so far and what follows. The last answer begins at ``start``; None if
        no token begins there."""
        last = self.answers[len([said for said in self.messages[: -self.new_count] if said.role == "assistant"]) - 1]
        assert last is not None, "a session ends with an answer"
        generated = last.tokens
        prompt = self.before[: len(self.before) - len(generated)]
        tail = self.codec.encode_with_places(rendered, self.codec.cut_before(rendered, start, prompt))
        kept, follows = _matched_tokens(self.codec, tail, start, generated)
        if follows is None:
            return None
        return [*prompt, *generated[:kept], *tail.ids[follows:]]

    def _replaced(self, whole: Encoded, messages: Sequence[Message], places: Sequence[int | None]) -> list[int]:
        """Return the ids of the rendered text, with the generated tokens of each answer that stands
        at its place."""
        ids: list[int] = []
        done = 0
        at_places = [
            (message, place) for message, place in zip(messages, places, strict=True) if message.role == "assistant"
        ]
        for said, (message, place) in zip(self.answers, at_places, strict=True):
            content = message.content.strip()
            if said is None or place is None or not content or not whole.text.startswith(content, place):
                continue
            first, follows, kept = self._place(whole, place, message, said)
            if follows is not None and first is not None and first >= done:
                ids += [*whole.ids[done:first], *said.tokens[:kept]]
                done = follows
        return [*ids, *whole.ids[done:]]

    def _place(
        self, whole: Encoded, found: int, message: Message, said: AnswerTokens
    ) -> tuple[int | None, int | None, int]:
        """Return the first id that an answer's tokens replace, the first id after them, and how
        many tokens they are."""
        start = found - (len(message.content) - len(message.content.lstrip()))
        if whole.text[start - 1 : start] == " " and _lost_space(self.codec, said.tokens, message.content):
            start -= 1
        kept, follows = _matched_tokens(self.codec, whole, start, said.tokens)
        return whole.border(start), follows if kept else None, kept


def next_prompt(session: Session, said: Sequence[Message]) -> NextPrompt:
    """Return the prompt of a session's next turn with these new messages, of which there is at
    least one. It holds as long as no other turn begins."""
    written = (None for message in said if message.role == "assistant")
    return NextPrompt(
        session.codec,
        session.clock,
        (*session.messages, *said),
        (*session.answers, *written),
        session.tokens,
        session.turn_count,
        session.rendered,
        len(said),
        session.options,
    )


def _prefix(text: str, length: int) -> RenderedPrefix:
    """Return the first ``length`` characters of a text as a prefix to compare."""
    return RenderedPrefix(
        length, hashlib.blake2b(text[:length].encode("utf-8", "surrogatepass"), digest_size=32).digest()
    )


def _lost_space(codec: Codec, tokens: Sequence[int], text: str) -> bool:
    """Return whether a decoder has stripped the space that begins the first of these tokens."""
    pieces = "".join(codec.tokenizer.id_to_token(token) or "" for token in tokens[:_LEADING])
    return _count_of(_PIECE_SPACE, pieces) > _count_of(" ", text)


def _count_of(space: str, text: str) -> int:
    return len(text) - len(text.lstrip(space))


def _matched_tokens(codec: Codec, whole: Encoded, start: int, tokens: Sequence[int]) -> tuple[int, int | None]:
    """Return how many tokens of an answer stay, and the index of the first id after them. The
    answer begins at ``start``.

    They are the most whose text is there and ends where an id ends. None if not even the answer
    begins where an id does.
    """
    text = codec.text_with_special_tokens(tokens)
    leads = (0, 1) if whole.text.startswith(" ", start) and _lost_space(codec, tokens, text) else (0,)
    equal, lead = max((_common_length(whole.text, start + lead, text), lead) for lead in leads)
    if equal == len(text) and tokens:
        follows = whole.border(start + lead + equal, after=tokens[-1])
        if follows is not None:
            return len(tokens), follows
    ends = codec.text_ends(tokens)
    for count in range(len(tokens), 0, -1):
        end = ends[count - 1]
        if end is not None and end <= equal:
            follows = whole.border(start + lead + end, after=tokens[count - 1])
            if follows is not None:
                return count, follows
    return 0, whole.border(start)


def _common_length(text: str, start: int, other: str) -> int:
    """Return how many characters of ``other`` stand in ``text`` from ``start`` on."""
    if text.startswith(other, start):
        return len(other)
    return next(at for at in range(len(other)) if not text.startswith(other[at], start + at))
