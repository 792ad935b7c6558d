"""The target's tokenizer and its chat template: text to tokens and back."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from tokenizers import Encoding, Tokenizer
from tokenizers.decoders import DecodeStream

from orchestrator.chat_templates.renderer import LONG_RENDERER, RENDERER
from orchestrator.chat_templates.rendering import CALLS, Conversation, Rendered, RenderingError
from orchestrator.errors import PromptTooLongError
from orchestrator.sessions.conversation.messages import NO_OPTIONS, Message, TemplateOptions
from slipstream.errors import FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.reasons import Reason
from slipstream.token_spelling import token_bytes


class NoChatTemplateError(SlipstreamError):
    """The model has no chat template."""

    reason = Reason.NO_CHAT_TEMPLATE


class ChatTemplateBrokenError(SlipstreamError):
    """The model's chat template cannot be compiled, or it fails on these messages."""

    reason = Reason.CHAT_TEMPLATE_BROKEN


LONG = 50_000
"""Length in characters from which on texts have a queue of their own, so that shorter texts do not
wait for them."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text's ids and the characters that each stands for."""

    text: str
    ids: list[int]
    starts: list[int]
    ends: list[int]

    def border(self, at: int, after: int | None = None) -> int | None:
        """Return the index of the first id whose characters begin at ``at`` or later, None if
        ``at`` is inside of an id's.

        The id ``after`` may reach further: a special token with rstrip takes the spaces that follow
        it.
        """
        index = bisect_left(self.starts, at)
        if index and self.ends[index - 1] > at and self.ids[index - 1] != after:
            return None
        return index


class Codec:
    """A tokenizer and a chat template, from the files the verifier hands out."""

    def __init__(self, tokenizer_json: bytes, special_tokens: dict[str, str], template: str | None) -> None:
        self.tokenizer_json = tokenizer_json
        """The bytes of tokenizer.json."""
        self.tokenizer = Tokenizer.from_buffer(tokenizer_json)
        self._post_processor = self.tokenizer.post_processor
        self.tokenizer.post_processor = None  # it may move the places of tokens
        self._cuts = _cuts(self.tokenizer)
        self._special_tokens = special_tokens
        self._template = template
        self._has_rendered = False
        self._token_bytes: dict[int, bytes] = {}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Codec:
        """Make a codec from a verifier's files by name."""
        template = files.get("chat_template.jinja")
        special_tokens = json.loads(files["tokenizer_config.json"])
        return cls(files["tokenizer.json"], special_tokens, None if template is None else template.decode())

    def encode_text(self, text: str) -> list[int]:
        """Encode raw text with the special tokens that the tokenizer itself adds."""
        encoding = self._encode(text)
        if self._post_processor is not None:
            encoding = self._post_processor.process(encoding, add_special_tokens=True)
        return encoding.ids

    def encode_rendered(self, text: str) -> list[int]:
        """Encode text that a chat template rendered: special tokens are in it already."""
        return self._encode(text).ids

    def encode_with_places(self, text: str, begin: int = 0) -> Encoded:
        """Encode rendered text from ``begin`` on, and tell where in it each id stands."""
        encoding = self._encode(text[begin:] if begin else text)
        places = encoding.offsets
        return Encoded(text, encoding.ids, [begin + start for start, _ in places], [begin + end for _, end in places])

    def cut_before(self, text: str, at: int, tokens: Sequence[int]) -> int:
        """Return a place in rendered text, at most ``at``, from which on the text has the ids that
        it has within the whole.

        It is where the last special token begins that stands among ``tokens``, the ids before
        ``at``; 0 if there is none.
        """
        token = next((token for token in reversed(tokens) if token in self._cuts), None)
        return 0 if token is None else max(0, text.rfind(self._cuts[token], 0, at))

    def _encode(self, text: str) -> Encoding:
        """Encode by a call that releases Python's lock, so that other threads run meanwhile."""
        return self.tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def text_of(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens, by a call that releases Python's lock."""
        return self.tokenizer.decode_batch([list(tokens)], skip_special_tokens=skip_special_tokens)[0]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return tokens as text without special tokens."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def strings_of(self, tokens: Sequence[int]) -> list[str]:
        """Return tokens as the vocabulary spells them; an id without a token is empty."""
        return [self.tokenizer.id_to_token(token) or "" for token in tokens]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text in its middle. They may be a part of a
        character. A special token has its name's."""
        found = self._token_bytes.get(token)
        if found is None:
            found = self._token_bytes[token] = token_bytes(self.tokenizer, self.context, token)
        return found

    def text_with_special_tokens(self, tokens: Sequence[int]) -> str:
        """Decode tokens as they stand in rendered text, special tokens included."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def text_ends(self, tokens: Sequence[int]) -> list[int | None]:
        """Return where in that text each of the tokens ends, None within a character."""
        stream = DecodeStream(skip_special_tokens=False)
        length, ends = 0, list[int | None]()
        for token in tokens:
            try:
                piece = stream.step(self.tokenizer, token)
            except Exception:  # its only class of error, where bytes that make no character take text back
                break
            length += len(piece or "")
            ends.append(None if piece is None else length)
        return ends + [None] * (len(tokens) - len(ends))

    @cached_property
    def special_texts(self) -> dict[int, str]:
        """Special tokens, as they stand in rendered text."""
        added = self.tokenizer.get_added_tokens_decoder()
        return {index: token.content for index, token in added.items() if token.special and token.content}

    @cached_property
    def context(self) -> list[int]:
        """Tokens of a letter: after them a decoder strips nothing."""
        return self.encode_rendered("a")

    def token_text(self, token: int) -> str:
        """Return a token as it stands in rendered text, special tokens included."""
        return self.text_with_special_tokens([token])

    def render(
        self,
        messages: Sequence[Message],
        clock: datetime,
        options: TemplateOptions = NO_OPTIONS,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Render the conversation as `render_with_places` does, and return the text alone."""
        return self.render_with_places(messages, clock, options, add_generation_prompt=add_generation_prompt).text

    def render_with_places(
        self,
        messages: Sequence[Message],
        clock: datetime,
        options: TemplateOptions = NO_OPTIONS,
        *,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """Render the conversation as the model wants it, up to where its answer begins, or with
        ``add_generation_prompt`` False up to the end of the last message. The template takes
        ``clock`` for now.

        Blocks for as long as the template takes. NoChatTemplateError; ChatTemplateBrokenError;
        PromptTooLongError; OverloadedError; InvalidFieldsError if the template refuses the
        messages, leaves one out, or does not read one of the ``options``.
        """
        if self._template is None:
            raise NoChatTemplateError("the model has no chat template; use Generate with a text or token prompt")
        length = options.length + sum(message.length for message in messages)
        conversation = Conversation(
            [message.as_template_reads for message in messages],
            self._special_tokens,
            clock,
            add_generation_prompt,
            options.as_template_reads,
        )
        try:
            rendered = (LONG_RENDERER if length > LONG else RENDERER).render(self._template, conversation)
        except RenderingError as error:
            raise self._refusal(error) from error
        self._has_rendered = True
        if rendered.unread:
            raise InvalidFieldsError([_unread(name) for name in rendered.unread])
        if rendered.left_out:
            what = "is left out by the model's chat template: the model would not read it"
            raise InvalidFieldsError(
                [FieldViolation(f"messages[{index}].content", what) for index in rendered.left_out]
            )
        return rendered

    def _refusal(self, error: RenderingError) -> SlipstreamError:
        """Return the error for a conversation that cannot be rendered."""
        if error.refused:
            return InvalidFieldsError([FieldViolation("messages", f"the chat template refuses them: {error}")])
        if error.limited and self._has_rendered:  # so it is this conversation that is too much
            return PromptTooLongError(
                f"the model's chat template fails on so long a conversation: {error}",
                [FieldViolation("messages", "must be fewer or shorter")],
            )
        return ChatTemplateBrokenError(
            f"the model's chat template fails: {error}; use Generate with a text or token prompt"
        )

    def template_fault(self, clock: datetime) -> str | None:
        """Return why no chat can be rendered, as far as a chat of one word shows. OverloadedError.
        Blocks, as `render` does."""
        try:
            self.render([Message("user", "Hello")], clock)
        except ChatTemplateBrokenError as error:
            return str(error)
        except InvalidFieldsError as error:
            is_left_out = any("left out" in violation.description for violation in error.violations)
            return "the model's chat template leaves out what a user says" if is_left_out else None
        except NoChatTemplateError:
            return None
        return None


def _unread(name: str) -> FieldViolation:
    """Return the violation of what a chat template does not read."""
    if name == "tools":
        return FieldViolation("template_options.tools", "are not read by the model's chat template")
    if name.endswith(CALLS):
        return FieldViolation(name, "are not read by the model's chat template")
    what = f"must not have {name}: it is no variable of the model's chat template"
    return FieldViolation("template_options.variables", what)


def _cuts(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the added tokens at whose beginning a text may be cut.

    The tokenizer looks for them before all else, and no other token reaches into one.
    """
    added = tokenizer.get_added_tokens_decoder()
    contents = [token.content for token in added.values()]
    firsts: dict[str, set[str]] = {}
    for content in contents:
        for character in content[1:]:
            firsts.setdefault(character, set()).add(content)
    return {
        index: token.content
        for index, token in added.items()
        if not (token.normalized or token.lstrip or token.single_word)
        and not any(_reaches_into(other, token.content) for other in firsts.get(token.content[0], ()))
    }


def _reaches_into(other: str, content: str) -> bool:
    """Return whether ``content`` may begin within an occurrence of the other token."""
    return any(content.startswith(other[at:]) or other.startswith(content, at) for at in range(1, len(other)))
