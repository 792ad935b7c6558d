"""The pair being served, as a turn needs it: what it allows, its tokenizer, its rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from orchestrator.errors import PromptTooLongError
from orchestrator.peers.model_info import ModelInfo
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.rounds import Rounds
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.conversation.next_prompt import NextPrompt
from orchestrator.sessions.conversation.resolving import (
    ModelLimits,
    ResolvedTurn,
    check_prompt_length,
    resolve_settings,
)
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.conversation.text import Codec, Message
from orchestrator.sessions.turns.text_work import TextWork
from slipstream.errors import FieldViolation, InvalidFieldsError, TokenizerMismatchError
from slipstream.sampling.rule import Acceptance
from slipstream.structures.trials import StructureTrials


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for the model's chat template; the last one is a user's."""

    messages: tuple[Message, ...]

    @property
    def length(self) -> int:
        """In characters."""
        return sum(message.length for message in self.messages)


Prompt = str | tuple[int, ...] | Conversation
"""Raw text, token ids, or a conversation."""


DEFAULT_MAX_TOKEN_COUNT = 512
"""Tokens that a turn may generate where caller, operator and model say nothing."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target that has been reached, and drafts that may yet be."""

    target: ModelInfo
    drafts: Drafts
    codec: Codec
    rounds: Rounds
    structures: StructureTrials
    default_draft_length: int | None
    """None: adaptive."""
    default_max_token_count: int | None
    """None: the model's own, or else 512."""
    text_work: TextWork = field(default_factory=TextWork)

    @property
    def limits(self) -> ModelLimits:
        """What the pair allows just now."""
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
        """Why no draft can be used, if it is that none fits."""
        draft = self.drafts.mismatched
        if draft is None:
            return None
        own, other = self.target.tokenizer_fingerprint, draft.tokenizer_fingerprint
        return TokenizerMismatchError(
            f"the draft {draft.name} has tokenizer {other}, but the target {self.target.name} has {own}; "
            "start a draft with the target's tokenizer, or ask for speculation off",
            draft=other,
            target=own,
        )

    async def check(self, settings: GenerationSettings, caller: Principal) -> None:
        """InvalidFieldsError or InvalidStructureError for what no turn could be run with, however
        short its prompt."""
        resolve_settings(settings, 1, self.limits)
        await self.check_structure(settings, caller)

    async def check_structure(self, settings: GenerationSettings, caller: Principal) -> None:
        """InvalidStructureError with the reason. In another process: to compile it may take any
        time and memory."""
        if settings.structure is not None:
            await self.structures.check(settings.structure, caller.name)

    def resolve_settings(
        self, settings: GenerationSettings, prompt_length: int, *, acceptance: Acceptance | None = None
    ) -> ResolvedTurn:
        """What a turn is run under, checked. ``acceptance`` is what the session has.

        InvalidFieldsError, PromptTooLongError or, for a wrong pair, TokenizerMismatchError.
        """
        resolved = resolve_settings(settings, prompt_length, self.limits, acceptance=acceptance)
        if resolved.terms.speculation.uses_draft and (mismatch := self.mismatch) is not None:
            raise mismatch
        return resolved

    async def encode(self, prompt: Prompt | NextPrompt, clock: datetime) -> list[int]:
        """A prompt's tokens; a conversation's ``clock`` is what its template takes for now.
        InvalidFieldsError if it holds a token that the model does not know, or a message that its
        template refuses or leaves out; NoChatTemplateError, ChatTemplateBrokenError,
        PromptTooLongError, OverloadedError."""
        if isinstance(prompt, tuple):
            check_prompt_length(len(prompt), self.target.context_length)  # it may be far too long to be looked at
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
        self.check_length(length, "prompt")
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

    def _without_rows(self, tokens: Sequence[int], prompt: str | Conversation | NextPrompt) -> list[FieldViolation]:
        """The tokens that stand for images and the like, which the model has no embedding for,
        where the caller wrote them."""
        found = dict.fromkeys(token for token in tokens if token >= self.target.vocabulary_size)
        names = [self.codec.token_text(token) for token in found]
        what = f"must not have the token {', '.join(names)}: the model has no embedding for it"
        if isinstance(prompt, str):
            return [FieldViolation("text", what)]
        holding = [index for index, said in enumerate(prompt.messages) if any(name in said.content for name in names)]
        places = [f"messages[{index}].content" for index in holding] or ["messages"]
        return [_placed(FieldViolation(place, what), prompt) for place in places]

    def check_length(self, length: int, field: str) -> None:
        """PromptTooLongError for so many characters that they would hardly fit."""
        most = self.limits.max_text_length
        if length > most:
            raise PromptTooLongError(
                f"{length} characters are more than a context of {self.target.context_length} tokens is looked at for",
                [FieldViolation(field, f"must have at most {most} characters")],
                context_length=self.target.context_length,
            )

    def _encode_conversation(self, conversation: Conversation, clock: datetime) -> list[int]:
        return self.codec.encode_rendered(self.codec.render(conversation.messages, clock))


def _placed(violation: FieldViolation, prompt: str | Conversation | NextPrompt) -> FieldViolation:
    """A violation in a conversation's messages, by the path of the field that the caller wrote."""
    if isinstance(prompt, Conversation):
        return FieldViolation(f"conversation.{violation.field}", violation.description)
    if isinstance(prompt, NextPrompt):
        last = len(prompt.messages) - 1
        places = {"messages": "content", f"messages[{last}].content": "content"}
        if prompt.messages[0].role == "system":
            places["messages[0].content"] = "system"
        return FieldViolation(places.get(violation.field, violation.field), violation.description)
    return violation
