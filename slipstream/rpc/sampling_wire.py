"""Sampling rules, structures, distributions and log-probabilities to protobuf and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache

from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.sampling.outcome import TokenDistribution, TokenLogprobs
from slipstream.sampling.rule import (
    DEFAULT_PROPOSAL_TOP_K,
    Acceptance,
    SamplingDefaults,
    SamplingRule,
    sampling_violations,
)
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.v1 import model_pb2, sampling_pb2

_ACCEPTANCES = {
    Acceptance.COUPLED: sampling_pb2.ACCEPTANCE_COUPLED,
    Acceptance.RATIO: sampling_pb2.ACCEPTANCE_RATIO,
}
_STRUCTURE_FIELDS = {
    StructureKind.JSON_SCHEMA: "json_schema",
    StructureKind.REGEX: "regex",
    StructureKind.GRAMMAR: "grammar",
}


def rule_of(message: sampling_pb2.SamplingRule) -> SamplingRule:
    """The sampling rule of an item; zeros that cannot be meant are off. InvalidFieldsError names what is wrong."""
    rule = SamplingRule(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p or 1.0,
        min_p=message.min_p,
        seed=message.seed,
        end_token_ids=tuple(message.end_token_ids),
        first_end_position=message.first_end_position,
        typical_p=message.typical_p or 1.0,
        repetition_penalty=message.repetition_penalty or 1.0,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=logit_bias_of(message.logit_bias),
        allowed_token_ids=tuple(message.allowed_token_ids),
        banned_token_ids=tuple(message.banned_token_ids),
        first_generated_position=message.first_generated_position,
        structure=structure_of(message.structure, "rule.structure") if message.HasField("structure") else None,
        acceptance=acceptance_of(message.acceptance) or Acceptance.COUPLED,
        proposal_top_k=message.proposal_top_k or DEFAULT_PROPOSAL_TOP_K,
    )
    violations = sampling_violations(rule)
    if violations:
        raise InvalidFieldsError([FieldViolation(f"rule.{v.field}", v.description) for v in violations])
    return rule


@lru_cache(maxsize=4096)
def rule_message(rule: SamplingRule, vocabulary_size: int) -> sampling_pb2.SamplingRule:
    """A rule for a model with that many tokens: what it says of others is left out, since it can never choose them.

    Every item of a turn carries the same one: it is made once, and must not be changed.
    """

    def known(tokens: Iterable[int]) -> list[int]:
        return [token for token in tokens if token < vocabulary_size]

    return sampling_pb2.SamplingRule(
        temperature=rule.temperature,
        top_k=rule.top_k,
        top_p=rule.top_p,
        min_p=rule.min_p,
        seed=rule.seed,
        end_token_ids=known(rule.end_token_ids),
        first_end_position=rule.first_end_position,
        typical_p=rule.typical_p,
        repetition_penalty=rule.repetition_penalty,
        presence_penalty=rule.presence_penalty,
        frequency_penalty=rule.frequency_penalty,
        logit_bias={token: bias for token, bias in rule.logit_bias if token < vocabulary_size},
        allowed_token_ids=known(rule.allowed_token_ids),
        banned_token_ids=known(rule.banned_token_ids),
        first_generated_position=rule.first_generated_position,
        structure=None if rule.structure is None else structure_message(rule.structure),
        acceptance=_ACCEPTANCES[rule.acceptance],
        proposal_top_k=rule.proposal_top_k,
    )


def logit_bias_of(entries: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """A bias map as a rule holds it: in the order of the token ids, so that equal maps make equal rules."""
    return tuple(sorted(entries.items()))


def acceptance_of(value: int) -> Acceptance | None:
    """None if it is left open."""
    for acceptance, number in _ACCEPTANCES.items():
        if number == value:
            return acceptance
    return None


def structure_of(message: sampling_pb2.Structure, field: str) -> Structure:
    """InvalidFieldsError, naming ``field``, if none of its kinds is set. What is in it is for the compiler to judge."""
    kind = message.WhichOneof("kind")
    if kind == "choices":
        return Structure(StructureKind.CHOICE, json.dumps(list(message.choices.choices), ensure_ascii=False))
    for structure_kind, name in _STRUCTURE_FIELDS.items():
        if name == kind:
            return Structure(structure_kind, getattr(message, name))
    raise InvalidFieldsError([FieldViolation(field, "must be one of json_schema, regex, choices and grammar")])


def structure_message(structure: Structure) -> sampling_pb2.Structure:
    """A structure for the wire."""
    if structure.kind is StructureKind.CHOICE:
        choices = sampling_pb2.ChoiceList(choices=json.loads(structure.source))
        return sampling_pb2.Structure(choices=choices)
    message = sampling_pb2.Structure()
    setattr(message, _STRUCTURE_FIELDS[structure.kind], structure.source)
    return message


def defaults_of(message: model_pb2.SamplingDefaults) -> SamplingDefaults:
    """A model's own sampling parameters."""
    return SamplingDefaults(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p or 1.0,
        min_p=message.min_p,
        typical_p=message.typical_p or 1.0,
        repetition_penalty=message.repetition_penalty or 1.0,
    )


def defaults_message(defaults: SamplingDefaults) -> model_pb2.SamplingDefaults:
    """A model's own sampling parameters for the wire."""
    return model_pb2.SamplingDefaults(
        temperature=defaults.temperature,
        top_k=defaults.top_k,
        top_p=defaults.top_p,
        min_p=defaults.min_p,
        typical_p=defaults.typical_p,
        repetition_penalty=defaults.repetition_penalty,
    )


def distribution_of(message: sampling_pb2.TokenDistribution) -> TokenDistribution:
    """A distribution over a few tokens."""
    return TokenDistribution(tuple(message.token_ids), tuple(message.probabilities))


def distribution_message(distribution: TokenDistribution) -> sampling_pb2.TokenDistribution:
    """A distribution for the wire."""
    return sampling_pb2.TokenDistribution(token_ids=distribution.tokens, probabilities=distribution.probabilities)


def logprobs_of(message: sampling_pb2.TokenLogprobs) -> TokenLogprobs:
    """A token's log-probabilities."""
    return TokenLogprobs(message.token_id, message.logprob, tuple((e.token_id, e.logprob) for e in message.top))


def logprobs_message(logprobs: TokenLogprobs) -> sampling_pb2.TokenLogprobs:
    """A token's log-probabilities for the wire."""
    return sampling_pb2.TokenLogprobs(
        token_id=logprobs.token,
        logprob=logprobs.logprob,
        top=[sampling_pb2.TokenLogprob(token_id=token, logprob=logprob) for token, logprob in logprobs.top],
    )
