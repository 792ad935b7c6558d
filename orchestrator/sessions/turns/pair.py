"""The pair of models that is served: its limits, its tokenizer, and its rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Protocol

from orchestrator.errors import NotReadyError, PromptTooLongError
from orchestrator.peers.model_info import ModelInfo
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.messages import NO_OPTIONS, Message, TemplateOptions
from orchestrator.sessions.conversation.resolving import (
    ModelLimits,
    ResolvedTurn,
    check_prompt_length,
    resolve_settings,
)
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.turns.text_work import TextWork
from slipstream.errors import FieldViolation, InvalidFieldsError, TokenizerMismatchError
from slipstream.sampling.rule import Acceptance
from slipstream.structures.trials import StructureTrials


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for the model's chat template; a generation's end with a user's or a tool's."""

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True
    """True to end the prompt with what opens the model's answer."""
    options: TemplateOptions = NO_OPTIONS

    @property
    def length(self) -> int:
        """Length in characters."""
        return self.options.length + sum(message.length for message in self.messages)


Prompt = str | tuple[int, ...] | Conversation
"""Raw text, token ids, or a conversation."""


class SessionPrompt(Protocol):
    """The prompt of a session's next turn; see `NextPrompt`."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The session's messages and the new ones, which are the last."""

    @property
    def new_count(self) -> int:
        """Number of new messages."""

    @property
    def length(self) -> int:
        """The length in characters."""

    def tokens(self) -> list[int]:
        """Render and encode the prompt. Blocks for as long as the template takes."""


DEFAULT_MAX_TOKEN_COUNT = 512
"""Tokens that a turn may generate if caller, operator and model set no other number."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target that the orchestrator has reached, and drafts that it may still reach."""

    target: ModelInfo
    drafts: Drafts
    codec: Codec
    rounds: Rounds
    structures: StructureTrials
    default_draft_length: int | None
    """Draft length if the caller sets none; None: adaptive."""
    default_max_token_count: int | None
    """Tokens of an answer if the caller sets none; None: the model's own number, or else 512."""
    text_work: TextWork = field(default_factory=TextWork)

    @property
    def limits(self) -> ModelLimits:
        """The limits of the pair now: a draft may lower the draft length."""
        target, longest = self.target, self.target.max_draft_length
        if self.drafts.max_draft_length is not None:
            longest = min(longest, self.drafts.max_draft_length)
        default = self.default_draft_length
        lengths = target.length_defaults
        if self.default_max_token_count is not None:
            lengths = replace(lengths, max_token_count=0, max_length=0)
        return ModelLimits(
            vocabulary_size=target.vocabulary_size,
            context_length=target.context_length,
            end_token_ids=target.end_token_ids,
            sampling_defaults=target.sampling_defaults,
            default_draft_length=None if default is None else min(default, longest),
            max_draft_length=longest,
            default_max_token_count=self.default_max_token_count or lengths.max_token_count or DEFAULT_MAX_TOKEN_COUNT,
            length_defaults=lengths,
        )

    @property
    def mismatch(self) -> TokenizerMismatchError | None:
        """The error of a draft whose tokenizer is not the target's; None if a draft fits."""
        draft = self.drafts.mismatched
        if draft is None:
            return None
        own, other = self.target.tokenizer_fingerprint, draft.tokenizer_fingerprint
        return TokenizerMismatchError(
            f"the draft {draft.name} has tokenizer {other}, but the target {self.target.name} has {own}; "
            f"start the draft service with --target-tokenizer {self.target.name}, or ask for speculation off",
            draft=other,
            target=own,
        )

    async def check(self, settings: GenerationSettings, caller: Principal) -> None:
        """Check settings without a prompt. InvalidFieldsError; InvalidStructureError."""
        resolve_settings(settings, 1, self.limits)
        await self.check_structure(settings, caller)

    async def check_structure(self, settings: GenerationSettings, caller: Principal) -> None:
        """Compile the structure in another process, which may take any time and memory.
        InvalidStructureError with the reason."""
        if settings.structure is not None:
            await self.structures.check(settings.structure, caller.name)

    def resolve_settings(
        self, settings: GenerationSettings, prompt_length: int, *, acceptance: Acceptance | None = None
    ) -> ResolvedTurn:
        """Resolve and check a turn's settings. ``acceptance`` is the session's, if it has one.

        InvalidFieldsError, PromptTooLongError or, for a wrong pair, TokenizerMismatchError.
        """
        resolved = resolve_settings(settings, prompt_length, self.limits, acceptance=acceptance)
        if resolved.terms.speculation.uses_draft and (mismatch := self.mismatch) is not None:
            raise mismatch
        return resolved

    async def encode(self, prompt: Prompt | SessionPrompt, clock: datetime) -> list[int]:
        """Return a prompt's tokens. The chat template reads ``clock`` as the current time.

        InvalidFieldsError for a token that the model does not know, and for a message that the
        template refuses or leaves out; NoChatTemplateError; ChatTemplateBrokenError;
        PromptTooLongError; OverloadedError.
        """
        if isinstance(prompt, tuple):
            check_prompt_length(len(prompt), self.target.context_length)  # before a pass over all of it
            size = self.target.vocabulary_size
            if not (min(prompt) >= 0 and max(prompt) < size):
                raise InvalidFieldsError([FieldViolation("tokens.token_ids", f"must be from 0 to {size - 1}")])
            return list(prompt)
        work: Callable[[], list[int]]
        if isinstance(prompt, str):
            length, work = len(prompt), partial(self.codec.encode_text, prompt)
        elif isinstance(prompt, Conversation):
            length, work = prompt.length, partial(self._encode_conversation, prompt, clock)
        else:
            length, work = prompt.length, prompt.tokens
        return await self._encoded(prompt, length, work)

    async def encode_bare(self, text: str) -> list[int]:
        """Return a text's tokens without the special tokens that the tokenizer puts around it.
        Raises what `encode` raises."""
        return await self._encoded(text, len(text), partial(self.codec.encode_rendered, text))

    async def _encoded(
        self, prompt: str | Conversation | SessionPrompt, length: int, work: Callable[[], list[int]]
    ) -> list[int]:
        self.check_length(length, "text" if isinstance(prompt, str) else _placed(_ALL_MESSAGES, prompt).field)
        try:
            tokens = await self.text_work.run(length, work, renders=not isinstance(prompt, str))
        except InvalidFieldsError as error:
            raise InvalidFieldsError([_placed(violation, prompt) for violation in error.violations]) from error
        except PromptTooLongError as error:
            violations = [_placed(violation, prompt) for violation in error.violations]
            raise PromptTooLongError(str(error), violations, context_length=self.target.context_length) from error
        if max(tokens, default=0) >= self.target.vocabulary_size:
            raise InvalidFieldsError(self._without_rows(tokens, prompt))
        return tokens

    def _without_rows(self, tokens: Sequence[int], prompt: str | Conversation | SessionPrompt) -> list[FieldViolation]:
        """Return the fields whose tokens the model has no embedding for, as those of images."""
        found = dict.fromkeys(token for token in tokens if token >= self.target.vocabulary_size)
        names = [self.codec.token_text(token) for token in found]
        what = f"must not have the token {', '.join(names)}: the model has no embedding for it"
        if isinstance(prompt, str):
            return [FieldViolation("text", what)]
        holding = [index for index, said in enumerate(prompt.messages) if any(name in said.content for name in names)]
        places = [f"messages[{index}].content" for index in holding] or ["messages"]
        return [_placed(FieldViolation(place, what), prompt) for place in places]

    def check_length(self, length: int, field: str) -> None:
        """Raise PromptTooLongError for a text that can hardly fit in the context."""
        most = self.limits.max_text_length
        if length > most:
            raise PromptTooLongError(
                f"{length} characters are too many for a context of {self.target.context_length} tokens",
                [FieldViolation(field, f"must have at most {most} characters")],
                context_length=self.target.context_length,
            )

    def _encode_conversation(self, conversation: Conversation, clock: datetime) -> list[int]:
        rendered = self.codec.render(
            conversation.messages,
            clock,
            conversation.options,
            add_generation_prompt=conversation.add_generation_prompt,
        )
        return self.codec.encode_rendered(rendered)


_ALL_MESSAGES = FieldViolation("messages", "")


def _placed(violation: FieldViolation, prompt: str | Conversation | SessionPrompt) -> FieldViolation:
    """Return a violation in a conversation's messages by the path of the caller's field."""
    if isinstance(prompt, str) or not violation.field.startswith("messages"):
        return violation
    field = f"conversation.{violation.field}" if isinstance(prompt, Conversation) else _of_session(violation, prompt)
    return FieldViolation(field, violation.description)


def _of_session(violation: FieldViolation, prompt: SessionPrompt) -> str:
    """Return the caller's field. A single message of a user is a ``content``. Several are
    ``messages``, counted from the first new one, and those before are the session's."""
    first = len(prompt.messages) - prompt.new_count
    new = prompt.messages[first:]
    name, dot, rest = violation.field.partition(".")
    index = name.removeprefix("messages[").removesuffix("]")
    if index == "0" and first and prompt.messages[0].role == "system":
        return "system"
    if len(new) == 1 and new[0].role == "user":
        return "content" if index in ("messages", str(first)) else violation.field
    if index == "messages":
        return violation.field
    at = int(index)
    return f"session.messages[{at}]{dot}{rest}" if at < first else f"messages[{at - first}]{dot}{rest}"


class ServedPair:
    """The pair that this process serves, once the verifier has been reached."""

    def __init__(self, describe_wait: Callable[[], str]) -> None:
        """``describe_wait`` returns what the process waits for while there is no pair."""
        self._describe_wait = describe_wait
        self._pair: Pair | None = None

    @property
    def is_ready(self) -> bool:
        """True if there is a pair."""
        return self._pair is not None

    @property
    def pair(self) -> Pair:
        """The pair. NotReadyError before the verifier has been reached."""
        if self._pair is None:
            raise NotReadyError(self._describe_wait())
        return self._pair

    @property
    def model_name(self) -> str:
        """The target's name; empty while there is no pair."""
        return "" if self._pair is None else self._pair.target.name

    def serve(self, pair: Pair) -> None:
        """Set the pair."""
        self._pair = pair

    def release(self, rounds: SessionRounds) -> None:
        """Release a session's pages and handles on the peers."""
        self.pair.rounds.release(rounds)
