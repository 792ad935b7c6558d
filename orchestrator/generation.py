"""What a client may ask of a turn, merged with defaults and resolved into a rule, limits and a draft length. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from orchestrator.errors import PromptTooLongError
from orchestrator.session import TurnLimits
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.sampling.rule import MAX_SEED, SamplingDefaults, SamplingRule, sampling_violations

MAX_STOP_STRINGS = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """Settings as a client sent them; None where it said nothing. ``draft_length`` 0 is off."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_token_count: int | None = None
    min_token_count: int | None = None
    stop_strings: tuple[str, ...] | None = None
    draft_length: int | None = None

    def over(self, other: GenerationSettings) -> GenerationSettings:
        """These settings, and where they say nothing the other's."""
        said = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return replace(other, **said)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the pair allows, and what holds where a client says nothing."""

    context_length: int
    end_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults
    default_draft_length: int
    max_draft_length: int
    default_max_token_count: int


@dataclass(frozen=True, slots=True)
class ResolvedTurn:
    """Everything a turn needs besides its prompt."""

    rule: SamplingRule
    limits: TurnLimits
    draft_length: int


def resolve(settings: GenerationSettings, prompt_length: int, model: ModelLimits) -> ResolvedTurn:
    """Fill what was left open and check it all.

    InvalidFieldsError names every bad field by its path in the request; PromptTooLongError if no room is left.
    """
    if prompt_length == 0:
        raise InvalidFieldsError([FieldViolation("prompt", "must have at least one token")])
    if prompt_length >= model.context_length:
        raise PromptTooLongError(
            f"the prompt has {prompt_length} tokens; the model's context holds {model.context_length}, the answer included",
            [FieldViolation("prompt", f"must have fewer than {model.context_length} tokens")],
            prompt_token_count=prompt_length,
            context_length=model.context_length,
        )
    defaults = model.sampling_defaults
    min_token_count = settings.min_token_count or 0
    rule = SamplingRule(
        temperature=_or(settings.temperature, defaults.temperature),
        top_k=_or(settings.top_k, defaults.top_k),
        top_p=_or(settings.top_p, defaults.top_p),
        min_p=_or(settings.min_p, defaults.min_p),
        seed=secrets.randbelow(MAX_SEED + 1) if settings.seed is None else settings.seed,
        end_token_ids=model.end_token_ids,
        first_end_position=prompt_length + min_token_count,
    )
    max_token_count = _or(settings.max_token_count, model.default_max_token_count)
    draft_length = _or(settings.draft_length, model.default_draft_length)
    stops = settings.stop_strings or ()
    violations = [FieldViolation(f"settings.sampling.{v.field}", v.description) for v in sampling_violations(rule)]
    most = min(max_token_count, model.context_length - prompt_length)
    violations += _violations(max_token_count, min_token_count, most, stops, draft_length, model.max_draft_length)
    if violations:
        raise InvalidFieldsError(violations)
    return ResolvedTurn(rule, TurnLimits(max_token_count, model.context_length, stops), draft_length)


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _violations(
    max_token_count: int,
    min_token_count: int,
    most: int,
    stops: Sequence[str],
    draft_length: int,
    max_draft_length: int,
) -> list[FieldViolation]:
    checks = (
        ("max_token_count", max_token_count >= 1, f"must be at least 1, but is {max_token_count}"),
        (
            "min_token_count",
            0 <= min_token_count <= max(most, 0),
            f"must be from 0 to what the turn may generate ({most}), but is {min_token_count}",
        ),
        ("stop_strings", len(stops) <= MAX_STOP_STRINGS, f"may be at most {MAX_STOP_STRINGS}, but are {len(stops)}"),
        ("stop_strings", all(stops), "must not be empty strings"),
        (
            "speculation.draft_length",
            0 <= draft_length <= max_draft_length,
            f"must be from 1 to {max_draft_length}, but is {draft_length}",
        ),
    )
    return [FieldViolation(f"settings.{name}", description) for name, right, description in checks if not right]
