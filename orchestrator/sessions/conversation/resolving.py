"""A client's settings, merged with defaults and checked, become what a turn is run under. Pure."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import TypeVar

from orchestrator.errors import PromptTooLongError
from orchestrator.rounds.terms import LEAD, LEAD_BEFORE_STOP_STRINGS, Prediction, RoundTerms
from orchestrator.sessions.conversation.settings import ADAPTIVE, GenerationSettings
from orchestrator.sessions.conversation.tasks import task_violations
from orchestrator.sessions.conversation.turn_limits import TurnLimits
from orchestrator.speculation.settings import SpeculationSettings
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.sampling.outcome import MAX_TOP_LOGPROB_COUNT
from slipstream.sampling.rule import (
    DEFAULT_PROPOSAL_TOP_K,
    MAX_LISTED_TOKENS,
    Acceptance,
    LengthDefaults,
    SamplingDefaults,
    SamplingRule,
    sampling_violations,
    token_id_violations,
)
from slipstream.sampling_fields import SAMPLING_FIELDS, values_of

MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 64
MAX_PROMPT_LOGPROBS, MAX_PROMPT_LOGPROBS_WITH_BYTES = 200_000, 100_000
"""Prompt tokens times log-probabilities of each: they come in one message, and clients take 4
MiB."""

_CHARACTERS_A_TOKEN, _LEAST_LENGTH = 16, 65_536
"""Characters for each token of the context, and least characters. A longer text could hardly fit:
it is refused before it is tokenized."""

DRAWN_SEEDS = 2**53
"""Drawn seeds are below this number: a double holds them, as clients in JavaScript need."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The limits of the pair, and the defaults of settings."""

    vocabulary_size: int
    context_length: int
    end_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults
    default_draft_length: int | None
    """Draft length if the caller sets none; None: adaptive."""
    max_draft_length: int
    default_max_token_count: int
    length_defaults: LengthDefaults = field(default=LengthDefaults())
    """The model's own lengths; the operator's number replaces ``max_token_count`` and
    ``max_length``."""

    @property
    def max_text_length(self) -> int:
        """Most characters of a prompt."""
        return max(_LEAST_LENGTH, _CHARACTERS_A_TOKEN * self.context_length)


@dataclass(frozen=True, slots=True)
class ResolvedTurn:
    """Everything a turn needs besides its prompt: the terms of its rounds, and its limits."""

    terms: RoundTerms
    limits: TurnLimits

    tells_origins: bool = False
    """True if readers get the origin of each token."""
    task: str = ""
    """The request's tag, by which acceptance is counted; empty: none. The text never depends on
    it."""

    def room(self, prompt_length: int) -> int:
        """Return how many tokens an answer may have after a prompt of that length."""
        return max(0, min(self.limits.max_token_count, self.limits.context_length - prompt_length))

    def predicting(self, prediction: Prediction | None) -> ResolvedTurn:
        """Return the same with what the caller expects."""
        return replace(self, terms=replace(self.terms, prediction=prediction))

    def in_session(self, *, is_private: bool) -> ResolvedTurn:
        """Return the same in a session, whose sequence may be collected unless it
        ``is_private``."""
        return replace(self, terms=replace(self.terms, do_not_collect=is_private))

    @property
    def tells_tokens_only(self) -> bool:
        """True if readers get only tokens and their text."""
        return self.terms.logprobs is None and not self.tells_origins

    @property
    def tells_token_bytes(self) -> bool:
        """True if readers get the bytes of tokens with their log-probabilities."""
        return self.terms.logprobs is not None and self.terms.logprobs.token_bytes

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True if the caller requested the prompt's log-probabilities."""
        return self.terms.logprobs is not None and self.terms.logprobs.prompt


def resolve_settings(
    settings: GenerationSettings, prompt_length: int, model: ModelLimits, *, acceptance: Acceptance | None = None
) -> ResolvedTurn:
    """Fill in defaults and check all settings. ``acceptance`` is the session's, if it has one.

    InvalidFieldsError names every bad field by its path in the request; PromptTooLongError if no
    room is left.
    """
    check_prompt_length(prompt_length, model.context_length)
    rule = _rule(settings, prompt_length, model, acceptance)
    limits = TurnLimits(
        max_token_count=_or(settings.max_token_count, _default_max_token_count(prompt_length, model)),
        context_length=model.context_length,
        stop_strings=settings.stop_strings or (),
        stop_token_ids=settings.stop_token_ids or (),
        include_stop=bool(settings.include_stop_in_text),
    )
    resolved = ResolvedTurn(
        RoundTerms(
            rule,
            _speculation(settings, model),
            settings.logprobs,
            LEAD_BEFORE_STOP_STRINGS if limits.stop_strings else LEAD,
            do_not_collect=bool(settings.do_not_collect),
        ),
        limits,
        bool(settings.token_origins),
        settings.task or "",
    )
    violations = [*_rule_violations(rule, model), *_violations(settings, resolved, prompt_length, model)]
    if violations:
        raise InvalidFieldsError([FieldViolation(f"settings.{v.field}", v.description) for v in violations])
    return resolved


def check_prompt_length(token_count: int, context_length: int) -> None:
    """Raise InvalidFieldsError for an empty prompt, PromptTooLongError if no room is left."""
    if token_count == 0:
        raise InvalidFieldsError([FieldViolation("prompt", "must have at least one token")])
    if token_count >= context_length:
        raise PromptTooLongError(
            f"the prompt has {token_count} tokens; the model's context holds {context_length}, the answer included",
            [FieldViolation("prompt", f"must have fewer than {context_length} tokens")],
            prompt_token_count=token_count,
            context_length=context_length,
        )


def _rule(
    settings: GenerationSettings, prompt_length: int, model: ModelLimits, acceptance: Acceptance | None
) -> SamplingRule:
    defaults = model.sampling_defaults
    end_token_ids = () if settings.ignore_end_tokens else model.end_token_ids
    given, own = values_of(settings), values_of(defaults) | {"seed": secrets.randbelow(DRAWN_SEEDS)}
    return SamplingRule(
        **{name: _or(given[name], own[name]) for name in SAMPLING_FIELDS},
        end_token_ids=(*end_token_ids, *(settings.stop_token_ids or ())),
        first_end_position=_first_end_position(settings, prompt_length, model),
        logit_bias=_or(settings.logit_bias, defaults.logit_bias),
        allowed_token_ids=tuple(dict.fromkeys(settings.allowed_token_ids or ())),
        banned_token_ids=_banned_token_ids(settings, defaults),
        first_generated_position=prompt_length,
        structure=settings.structure,
        acceptance=settings.acceptance or acceptance or Acceptance.COUPLED,
        proposal_top_k=_or(settings.proposal_top_k, DEFAULT_PROPOSAL_TOP_K),
    )


def _banned_token_ids(settings: GenerationSettings, defaults: SamplingDefaults) -> tuple[int, ...]:
    """Return the caller's banned tokens, or else the model's, but for those that the caller
    allows."""
    if settings.banned_token_ids is not None:
        return tuple(dict.fromkeys(settings.banned_token_ids))
    allowed = set(settings.allowed_token_ids or ())
    return tuple(token for token in defaults.banned_token_ids if token not in allowed)


def _default_max_token_count(prompt_length: int, model: ModelLimits) -> int:
    """Return how many tokens a turn may generate if the caller sets no number.

    The model's ``max_length`` does not hold for a prompt that is longer.
    """
    lengths = model.length_defaults
    if lengths.max_token_count:
        return lengths.max_token_count
    left = lengths.max_length - prompt_length
    return left if left > 0 else model.default_max_token_count


def _first_end_position(settings: GenerationSettings, prompt_length: int, model: ModelLimits) -> int:
    """Return the position where a text may end first. The caller's settings override the model's
    minimum if both cannot hold."""
    if settings.min_token_count is not None:
        return prompt_length + settings.min_token_count
    if settings.structure is not None or settings.ignore_end_tokens or settings.allowed_token_ids:
        return prompt_length
    lengths = model.length_defaults
    most = _or(settings.max_token_count, _default_max_token_count(prompt_length, model))
    longest = min(model.context_length, prompt_length + max(0, most))
    wished = max(prompt_length + lengths.min_token_count, lengths.min_length)
    return max(prompt_length, min(wished, longest))


def _speculation(settings: GenerationSettings, model: ModelLimits) -> SpeculationSettings:
    if settings.draft_length == ADAPTIVE:
        draft_length = None
    else:
        draft_length = model.default_draft_length if settings.draft_length is None else settings.draft_length
    return SpeculationSettings(draft_length, settings.proposer)


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _rule_violations(rule: SamplingRule, model: ModelLimits) -> list[FieldViolation]:
    """Return the violations of a rule, by the fields' paths in the settings."""
    violations = [*sampling_violations(rule), *token_id_violations(rule, model.vocabulary_size)]
    violations += [
        FieldViolation(name, f"may name at most {MAX_LISTED_TOKENS} tokens, but names {len(tokens)}")
        for name, tokens in rule.token_ids
        if len(tokens) > MAX_LISTED_TOKENS
    ]
    if not violations and not _leaves_a_token(rule, model.vocabulary_size):
        what = "must leave at least one token that is neither banned nor an end token held back"
        violations = [FieldViolation("allowed_token_ids" if rule.allowed_token_ids else "banned_token_ids", what)]
    places = {"end_token_ids": "stop_token_ids", "proposal_top_k": "proposal_top_k"}
    return [FieldViolation(places.get(v.field, f"sampling.{v.field}"), v.description) for v in violations]


def _leaves_a_token(rule: SamplingRule, vocabulary_size: int) -> bool:
    held_back = rule.end_token_ids if rule.first_end_position > rule.first_generated_position else ()
    excluded = {*rule.banned_token_ids, *held_back}
    if rule.allowed_token_ids:
        return bool(set(rule.allowed_token_ids) - excluded)
    return len(excluded) < vocabulary_size


def _violations(
    settings: GenerationSettings, resolved: ResolvedTurn, prompt_length: int, model: ModelLimits
) -> list[FieldViolation]:
    """Return the violations outside the rule."""
    limits, terms = resolved.limits, resolved.terms
    draft_length = terms.speculation.draft_length or 0
    most = min(limits.max_token_count, model.context_length - prompt_length)
    min_token_count = settings.min_token_count or 0
    top_count = terms.logprobs.top_count if terms.logprobs is not None else 0
    most_logprobs = MAX_PROMPT_LOGPROBS_WITH_BYTES if resolved.tells_token_bytes else MAX_PROMPT_LOGPROBS
    stops, tokens = limits.stop_strings, limits.stop_token_ids
    checks = (
        ("max_token_count", limits.max_token_count >= 1, f"must be at least 1, but is {limits.max_token_count}"),
        (
            "min_token_count",
            0 <= min_token_count <= max(most, 0),
            f"must be from 0 to what the turn may generate ({most}), but is {min_token_count}",
        ),
        ("stop_strings", len(stops) <= MAX_STOP_STRINGS, f"may be at most {MAX_STOP_STRINGS}, but are {len(stops)}"),
        ("stop_strings", all(stops), "must not be empty strings"),
        ("stop_token_ids", len(tokens) <= MAX_STOP_TOKENS, f"may be at most {MAX_STOP_TOKENS}, but are {len(tokens)}"),
        (
            "logprobs.top_count",
            0 <= top_count <= MAX_TOP_LOGPROB_COUNT,
            f"must be from 0 to {MAX_TOP_LOGPROB_COUNT}, but is {top_count}",
        ),
        (
            "logprobs.prompt",
            not resolved.wants_prompt_logprobs or prompt_length * (1 + top_count) <= most_logprobs,
            f"may ask for at most {most_logprobs} log-probabilities: take a shorter prompt or a lower top_count",
        ),
        (
            "speculation.fixed.length",
            0 <= draft_length <= model.max_draft_length,
            f"must be from 1 to {model.max_draft_length}, but is {draft_length}",
        ),
        (
            "speculation.proposer",
            not terms.rule.draws_ratios or terms.speculation.is_off or terms.speculation.uses_draft,
            "must be the draft, or unset, under acceptance RATIO: other hints have no odds to test",
        ),
    )
    violations = [FieldViolation(name, description) for name, right, description in checks if not right]
    violations += task_violations(resolved.task)
    if settings.structure is not None:
        violations += _structure_conflicts(settings)
    return violations


def _structure_conflicts(settings: GenerationSettings) -> list[FieldViolation]:
    """Return violations by settings that a structure excludes: it determines the text's tokens and
    its end."""
    others = {
        "ignore_end_tokens": settings.ignore_end_tokens,
        "min_token_count": settings.min_token_count,
        "sampling.allowed_token_ids": settings.allowed_token_ids,
        "sampling.banned_token_ids": settings.banned_token_ids,
    }
    return [FieldViolation(name, "must not be set together with structure") for name, value in others.items() if value]
