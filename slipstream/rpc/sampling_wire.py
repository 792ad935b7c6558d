"""Conversion of sampling rules, structures, distributions and log-probabilities to protobuf and
back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sized
from dataclasses import asdict, fields

from google.protobuf.message import Message

from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.sampling.outcome import TokenDistribution, TokenLogprobs
from slipstream.sampling.rule import (
    MAX_LISTED_TOKENS,
    Acceptance,
    LengthDefaults,
    SamplingDefaults,
    SamplingRule,
    sampling_violations,
    token_id_violations,
)
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling_fields import MODEL_DEFAULTS, SAMPLING_FIELDS, values_of
from slipstream.v1 import sampling_pb2
from slipstream.wire.v1 import model_pb2, rule_pb2

ACCEPTANCES = {
    Acceptance.COUPLED: sampling_pb2.ACCEPTANCE_COUPLED,
    Acceptance.RATIO: sampling_pb2.ACCEPTANCE_RATIO,
}
_STRUCTURE_FIELDS = {
    StructureKind.JSON_SCHEMA: "json_schema",
    StructureKind.REGEX: "regex",
    StructureKind.GRAMMAR: "grammar",
}


def rule_of(message: rule_pb2.SamplingRule, vocabulary_size: int) -> SamplingRule:
    """Return the sampling rule of a message for a vocabulary. InvalidFieldsError names every field
    that is missing or wrong."""
    open_ = [name for name in SAMPLING_FIELDS if not _is_set(message.sampling, name)]
    if open_:
        what = "must be set: a rule states every field"
        raise InvalidFieldsError([FieldViolation(f"rule.sampling.{name}", what) for name in open_])
    _check_counts(message)
    acceptance = acceptance_of(message.acceptance, "rule.acceptance")
    if acceptance is None:
        raise InvalidFieldsError([FieldViolation("rule.acceptance", "must be set: a rule states every field")])
    rule = SamplingRule(
        **{name: getattr(message.sampling, name) for name in SAMPLING_FIELDS},
        logit_bias=logit_bias_of(message.sampling.logit_bias),
        allowed_token_ids=tuple(message.sampling.allowed_token_ids),
        banned_token_ids=tuple(message.sampling.banned_token_ids),
        end_token_ids=tuple(message.end_token_ids),
        first_end_position=message.first_end_position,
        first_generated_position=message.first_generated_position,
        structure=structure_of(message.structure, "rule.structure") if message.HasField("structure") else None,
        acceptance=acceptance,
        proposal_top_k=message.proposal_top_k,
    )
    violations = [*sampling_violations(rule), *token_id_violations(rule, vocabulary_size)]
    violations += [
        FieldViolation(name, f"must be 0 or more, but is {getattr(rule, name)}")
        for name in ("first_end_position", "first_generated_position")
        if getattr(rule, name) < 0
    ]
    if violations:
        raise InvalidFieldsError([FieldViolation(f"rule.{_path(v.field)}", v.description) for v in violations])
    return rule


def _check_counts(message: rule_pb2.SamplingRule) -> None:
    """Refuse lists that are far too long before they are read. InvalidFieldsError.

    A rule of a 64 MiB message would take gigabytes.
    """
    lists: list[tuple[str, Sized]] = [("rule.end_token_ids", message.end_token_ids)]
    lists += [
        (f"rule.sampling.{name}", getattr(message.sampling, name))
        for name in ("logit_bias", "allowed_token_ids", "banned_token_ids")
    ]
    violations = [
        FieldViolation(name, f"may be at most {MAX_LISTED_TOKENS}, but are {len(entries)}")
        for name, entries in lists
        if len(entries) > MAX_LISTED_TOKENS
    ]
    if violations:
        raise InvalidFieldsError(violations)


def _is_set(message: Message, name: str) -> bool:
    return message.HasField(name)


def _path(field: str) -> str:
    return field if field in rule_pb2.SamplingRule.DESCRIPTOR.fields_by_name else f"sampling.{field}"


def rule_message(rule: SamplingRule, vocabulary_size: int) -> rule_pb2.SamplingRule:
    """Return the message of a rule for a model with a vocabulary of this size.

    Tokens outside the vocabulary are left out, because the model can never choose them.
    """

    def known(tokens: Iterable[int]) -> list[int]:
        return [token for token in tokens if token < vocabulary_size]

    return rule_pb2.SamplingRule(
        sampling=sampling_pb2.SamplingParameters(
            **values_of(rule),
            logit_bias={token: bias for token, bias in rule.logit_bias if token < vocabulary_size},
            allowed_token_ids=known(rule.allowed_token_ids),
            banned_token_ids=known(rule.banned_token_ids),
        ),
        end_token_ids=known(rule.end_token_ids),
        first_end_position=rule.first_end_position,
        first_generated_position=rule.first_generated_position,
        structure=None if rule.structure is None else structure_message(rule.structure),
        acceptance=ACCEPTANCES[rule.acceptance],
        proposal_top_k=rule.proposal_top_k,
    )


def rule_hash(message: rule_pb2.SamplingRule) -> int:
    """Return the name of a rule on the wire (rule_hash in draft.proto and verifier.proto); never
    0."""
    digest = hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
    return int.from_bytes(digest[:8], "big") or 1


def logit_bias_of(entries: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Return a bias map in the order of the token ids, so that equal maps make equal rules."""
    return tuple(sorted(entries.items()))


def acceptance_of(value: int, field: str) -> Acceptance | None:
    """Return the acceptance; None if it is unspecified.

    InvalidFieldsError, which names ``field``, if there is no such acceptance.
    """
    if value == sampling_pb2.ACCEPTANCE_UNSPECIFIED:
        return None
    for acceptance, number in ACCEPTANCES.items():
        if number == value:
            return acceptance
    names = " or ".join(map(sampling_pb2.Acceptance.Name, ACCEPTANCES.values()))
    raise InvalidFieldsError([FieldViolation(field, f"must be {names}, but is {value}")])


def structure_of(message: sampling_pb2.Structure, field: str) -> Structure:
    """Return the structure of a message, whose source is checked later by the compiler.

    InvalidFieldsError, which names ``field``, if no kind is set.
    """
    kind = message.WhichOneof("kind")
    if kind == "choices":
        return Structure(StructureKind.CHOICE, json.dumps(list(message.choices.choices), ensure_ascii=False))
    for structure_kind, name in _STRUCTURE_FIELDS.items():
        if name == kind:
            return Structure(structure_kind, getattr(message, name))
    raise InvalidFieldsError([FieldViolation(field, "must be one of json_schema, regex, choices and grammar")])


def structure_message(structure: Structure) -> sampling_pb2.Structure:
    """Return the message of a structure."""
    if structure.kind is StructureKind.CHOICE:
        choices = sampling_pb2.ChoiceList(choices=json.loads(structure.source))
        return sampling_pb2.Structure(choices=choices)
    message = sampling_pb2.Structure()
    setattr(message, _STRUCTURE_FIELDS[structure.kind], structure.source)
    return message


def defaults_of(message: sampling_pb2.SamplingParameters) -> SamplingDefaults:
    """Return a model's own sampling parameters; an unset parameter is off."""
    return SamplingDefaults(
        **{name: getattr(message, name) for name in MODEL_DEFAULTS if _is_set(message, name)},
        logit_bias=logit_bias_of(message.logit_bias),
        banned_token_ids=tuple(message.banned_token_ids),
    )


def defaults_message(defaults: SamplingDefaults) -> sampling_pb2.SamplingParameters:
    """Return the message of a model's own sampling parameters."""
    return sampling_pb2.SamplingParameters(
        **{name: getattr(defaults, name) for name in MODEL_DEFAULTS},
        logit_bias=dict(defaults.logit_bias),
        banned_token_ids=defaults.banned_token_ids,
    )


def lengths_of(message: model_pb2.LengthDefaults) -> LengthDefaults:
    """Return a model's own bounds of a text's length; an unset bound is none."""
    return LengthDefaults(**{field.name: max(0, getattr(message, field.name)) for field in fields(LengthDefaults)})


def lengths_message(lengths: LengthDefaults) -> model_pb2.LengthDefaults:
    """Return the message of a model's own bounds of a text's length."""
    return model_pb2.LengthDefaults(**asdict(lengths))


def distribution_of(message: rule_pb2.TokenDistribution) -> TokenDistribution:
    """Return the distribution over a few tokens of a message."""
    return TokenDistribution(tuple(message.token_ids), tuple(message.probabilities))


def distribution_message(distribution: TokenDistribution) -> rule_pb2.TokenDistribution:
    """Return the message of a distribution."""
    return rule_pb2.TokenDistribution(token_ids=distribution.tokens, probabilities=distribution.probabilities)


def logprobs_of(message: sampling_pb2.TokenLogprobs) -> TokenLogprobs:
    """Return a token's log-probabilities of a message."""
    return TokenLogprobs(message.token_id, message.logprob, tuple((e.token_id, e.logprob) for e in message.top))


def logprobs_message(logprobs: TokenLogprobs) -> sampling_pb2.TokenLogprobs:
    """Return the message of a token's log-probabilities."""
    return sampling_pb2.TokenLogprobs(
        token_id=logprobs.token,
        logprob=logprobs.logprob,
        top=[sampling_pb2.TokenLogprob(token_id=token, logprob=logprob) for token, logprob in logprobs.top],
    )
