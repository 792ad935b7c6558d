"""Conversions between GenerationSettings messages and the orchestrator's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from google.protobuf.field_mask_pb2 import FieldMask

from orchestrator.contract.fields import given, meaning
from orchestrator.sessions.conversation.settings import ADAPTIVE, GenerationSettings
from orchestrator.speculation.proposal import Source
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.rpc.sampling_wire import ACCEPTANCES, acceptance_of, logit_bias_of, structure_message, structure_of
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import MAX_LISTED_TOKENS
from slipstream.sampling_fields import SAMPLING_FIELDS
from slipstream.v1 import generation_pb2, sampling_pb2

_SAMPLING_LISTS = ("allowed_token_ids", "banned_token_ids")
_SCALARS = (
    "max_token_count",
    "min_token_count",
    "ignore_end_tokens",
    "include_stop_in_text",
    "proposal_top_k",
    "token_origins",
    "task",
    "do_not_collect",
)
_LISTS = ("stop_strings", "stop_token_ids")
_SPECULATION = ("draft_length", "proposer")

_PROPOSERS = {
    generation_pb2.Speculation.PROPOSER_DRAFT: Source.DRAFT,
    generation_pb2.Speculation.PROPOSER_NGRAM: Source.NGRAM,
    generation_pb2.Speculation.PROPOSER_HEADS: Source.HEADS,
}

_SAMPLING_NAMES = (*SAMPLING_FIELDS, "logit_bias", *_SAMPLING_LISTS)
CLEARABLE: Final[dict[str, tuple[str, ...]]] = {
    "sampling": _SAMPLING_NAMES,
    **{f"sampling.{name}": (name,) for name in _SAMPLING_NAMES},
    **{name: (name,) for name in (*_SCALARS, *_LISTS, "logprobs", "structure", "acceptance")},
    "speculation": _SPECULATION,
    "speculation.overlap": (),
    "speculation.proposer": ("proposer",),
}
"""Fields that `cleared` may name, each with the settings that it clears."""


def settings_of(message: generation_pb2.GenerationSettings) -> GenerationSettings:
    """Convert a client's settings. InvalidFieldsError for unknown enum values, and for fields that
    are both set and cleared.

    Other values are checked where all layers have come together.
    """
    sampling, speculation = message.sampling, message.speculation
    _check_counts(message)
    said = {name: given(sampling, name) for name in SAMPLING_FIELDS}
    said |= {name: given(message, name) for name in _SCALARS}
    said |= {name: tuple(getattr(sampling, name)) or None for name in _SAMPLING_LISTS}
    said |= {name: tuple(getattr(message, name)) or None for name in _LISTS}
    has_logprobs, has_structure = message.HasField("logprobs"), message.HasField("structure")
    settings = GenerationSettings(
        **said,
        logit_bias=logit_bias_of(sampling.logit_bias) or None,
        logprobs=_logprobs(message.logprobs) if has_logprobs else None,
        structure=structure_of(message.structure, "settings.structure") if has_structure else None,
        acceptance=acceptance_of(message.acceptance, "settings.acceptance"),
        draft_length=_draft_length(speculation),
        proposer=meaning(speculation.proposer, _PROPOSERS, speculation.Proposer, "settings.speculation.proposer"),
        cleared=_cleared(message.cleared),
    )
    both = [name for name in settings.cleared if getattr(settings, name) is not None]
    if both:
        raise InvalidFieldsError(
            [FieldViolation("settings.cleared", f"names {', '.join(both)}, which are set as well")]
        )
    return settings


def _logprobs(message: generation_pb2.LogprobSettings) -> LogprobRequest:
    return LogprobRequest(message.top_count, message.prompt, message.token_bytes)


def _check_counts(message: generation_pb2.GenerationSettings) -> None:
    """Refuse lists that are far too long, before reading them."""
    fields = [(f"sampling.{name}", getattr(message.sampling, name)) for name in ("logit_bias", *_SAMPLING_LISTS)]
    fields += [(name, getattr(message, name)) for name in _LISTS]
    violations = [
        FieldViolation(f"settings.{name}", f"may be at most {MAX_LISTED_TOKENS}, but are {len(entries)}")
        for name, entries in fields
        if len(entries) > MAX_LISTED_TOKENS
    ]
    if violations:
        raise InvalidFieldsError(violations)


def settings_message(settings: GenerationSettings) -> generation_pb2.GenerationSettings:
    """Convert settings into a message."""
    sampling = sampling_pb2.SamplingParameters(
        **{name: getattr(settings, name) for name in (*SAMPLING_FIELDS, *_SAMPLING_LISTS)},
        logit_bias=dict(settings.logit_bias or ()),
    )
    paths = [path for path, names in CLEARABLE.items() if len(names) == 1 and names[0] in settings.cleared]
    if "draft_length" in settings.cleared:
        paths.append("speculation")
    message = generation_pb2.GenerationSettings(
        **{name: getattr(settings, name) for name in (*_SCALARS, *_LISTS)},
        structure=None if settings.structure is None else structure_message(settings.structure),
        acceptance=ACCEPTANCES[settings.acceptance] if settings.acceptance else sampling_pb2.ACCEPTANCE_UNSPECIFIED,
        cleared=FieldMask(paths=paths) if paths else None,
    )
    if settings.logprobs is not None:
        message.logprobs.top_count = settings.logprobs.top_count
        message.logprobs.prompt = settings.logprobs.prompt
        message.logprobs.token_bytes = settings.logprobs.token_bytes
    speculation = speculation_message(settings.draft_length, settings.proposer)
    if speculation.ByteSize():
        message.speculation.CopyFrom(speculation)
    if sampling.ByteSize():
        message.sampling.CopyFrom(sampling)
    return message


def speculation_message(
    draft_length: int | Literal["adaptive"] | None, proposer: Source | None = None
) -> generation_pb2.Speculation:
    """Return the Speculation message. ``draft_length`` 0 is off; None leaves it unset."""
    message = generation_pb2.Speculation(proposer=_value(_PROPOSERS, proposer))
    if draft_length == ADAPTIVE:
        message.adaptive.SetInParent()
    elif draft_length == 0:
        message.off.SetInParent()
    elif draft_length is not None:
        message.fixed.length = int(draft_length)
    return message


def _draft_length(speculation: generation_pb2.Speculation) -> int | Literal["adaptive"] | None:
    mode = speculation.WhichOneof("mode")
    if mode == "off":
        return 0
    if mode == "adaptive":
        return ADAPTIVE
    if mode == "fixed":
        if speculation.fixed.length < 1:
            what = f"must be 1 or more, but is {speculation.fixed.length}"
            raise InvalidFieldsError([FieldViolation("settings.speculation.fixed.length", what)])
        return speculation.fixed.length
    return None


def _cleared(mask: FieldMask) -> tuple[str, ...]:
    unknown = [path for path in mask.paths if path not in CLEARABLE]
    if unknown:
        what = f"must name fields of GenerationSettings ({', '.join(CLEARABLE)}), but names {unknown[0]!r}"
        raise InvalidFieldsError([FieldViolation("settings.cleared", what)])
    return tuple(sorted({name for path in mask.paths for name in CLEARABLE[path]}))


def _value(meanings: Mapping[Any, object], meant: object) -> Any:
    return next((value for value, known in meanings.items() if known is meant), 0)
