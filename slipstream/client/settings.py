"""Settings of a request as Python values, and the messages that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

from google.protobuf import field_mask_pb2

from slipstream.sampling_fields import SamplingFields
from slipstream.v1 import generation_pb2, sampling_pb2

_LISTS = "allowed_token_ids", "banned_token_ids", "stop_strings", "stop_token_ids", "cleared"

_SAMPLING_FIELDS = tuple(sampling_pb2.SamplingParameters.DESCRIPTOR.fields_by_name)


def refuse_text(name: str, value: object) -> None:
    """Refuse a text where a list belongs: TypeError. It would be taken for the list of its
    letters."""
    if isinstance(value, str | bytes):
        raise TypeError(f"{name} must be a list, but is {value!r}: write [{value!r}] for a list of one")


@dataclass(frozen=True, slots=True)
class Structure:
    """The structure of the text. Exactly one field is set: a JSON Schema as JSON text, a regular
    expression, a list of texts, or a grammar in Lark's notation."""

    json_schema: str | None = None
    regex: str | None = None
    choices: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        refuse_text("choices", self.choices)

    def message(self) -> sampling_pb2.Structure:
        """Convert to a message."""
        message = sampling_pb2.Structure()
        for name in ("json_schema", "regex", "grammar"):
            value = getattr(self, name)
            if value is not None:
                setattr(message, name, value)
        if self.choices is not None:
            message.choices.SetInParent()  # no choices are a mistake to tell, not nothing said
            message.choices.choices.extend(self.choices)
        return message


@dataclass(frozen=True, slots=True)
class Settings(SamplingFields[float | None, int | None]):
    """Settings of a turn: how tokens are chosen, where it ends and how it is sped up.

    A field that is unset takes the layer below: a message's settings lie over its session's, and
    those over the defaults of the server and the model.

    The sampling fields are those of `SamplingFields`. ``draft_length`` is the number of draft
    tokens a round, 0 to switch drafting off, or "adaptive". ``proposer`` says what proposes tokens
    ("draft", "ngram" or "heads"). ``task`` is a tag by which the server counts acceptance: at most
    64 characters of A-Z, a-z, 0-9 and _.:/-. It never changes the text. ``do_not_collect`` keeps
    the text out of what the operator collects to train drafts. ``top_logprob_count`` asks for
    log-probabilities of the generated tokens, and of that many likeliest tokens beside each one.
    ``prompt_logprobs`` asks for the prompt's too, ``token_bytes`` for the bytes of each token, and
    ``token_origins`` for how each token came about. ``ratio`` selects the ratio test instead of
    coupled sampling. ``cleared`` names fields of the GenerationSettings message that take the
    default although the session sets them: "stop_strings", "sampling.temperature".
    """

    _: KW_ONLY
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] = ()
    banned_token_ids: Sequence[int] = ()
    max_token_count: int | None = None
    min_token_count: int | None = None
    stop_strings: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_end_tokens: bool | None = None
    include_stop_in_text: bool | None = None
    token_origins: bool | None = None
    top_logprob_count: int | None = None
    prompt_logprobs: bool = False
    token_bytes: bool = False
    structure: Structure | None = None
    ratio: bool | None = None
    proposal_top_k: int | None = None
    draft_length: int | Literal["adaptive"] | None = None
    proposer: Literal["draft", "ngram", "heads"] | None = None
    task: str | None = None
    do_not_collect: bool | None = None
    cleared: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in _LISTS:
            refuse_text(name, getattr(self, name))
        if not isinstance(self.logit_bias, Mapping):
            raise TypeError(f"logit_bias must be a dict of numbers by token ids, but is {self.logit_bias!r}")

    def message(self) -> generation_pb2.GenerationSettings:
        """Convert to a message. An unset field is absent."""
        return generation_pb2.GenerationSettings(
            sampling=self._sampling(),
            max_token_count=self.max_token_count,
            min_token_count=self.min_token_count,
            stop_strings=self.stop_strings,
            stop_token_ids=self.stop_token_ids,
            ignore_end_tokens=self.ignore_end_tokens,
            include_stop_in_text=self.include_stop_in_text,
            token_origins=self.token_origins,
            logprobs=self._logprobs(),
            structure=None if self.structure is None else self.structure.message(),
            acceptance=self._acceptance(),
            proposal_top_k=self.proposal_top_k,
            speculation=self._speculation(),
            task=self.task,
            do_not_collect=self.do_not_collect,
            cleared=field_mask_pb2.FieldMask(paths=self.cleared) if self.cleared else None,
        )

    def _sampling(self) -> sampling_pb2.SamplingParameters | None:
        sampling = sampling_pb2.SamplingParameters(**{name: getattr(self, name) for name in _SAMPLING_FIELDS})
        return sampling if sampling.ListFields() else None

    def _logprobs(self) -> generation_pb2.LogprobSettings | None:
        if self.top_logprob_count is None and not (self.prompt_logprobs or self.token_bytes):
            return None
        return generation_pb2.LogprobSettings(
            top_count=self.top_logprob_count or 0, prompt=self.prompt_logprobs, token_bytes=self.token_bytes
        )

    def _acceptance(self) -> sampling_pb2.Acceptance.ValueType:
        if self.ratio is None:
            return sampling_pb2.ACCEPTANCE_UNSPECIFIED
        return sampling_pb2.ACCEPTANCE_RATIO if self.ratio else sampling_pb2.ACCEPTANCE_COUPLED

    def _speculation(self) -> generation_pb2.Speculation | None:
        speculation = generation_pb2.Speculation()
        if self.draft_length == "adaptive":
            speculation.adaptive.SetInParent()
        elif self.draft_length:
            speculation.fixed.length = self.draft_length
        elif self.draft_length is not None:
            speculation.off.SetInParent()
        if self.proposer is not None:
            speculation.proposer = generation_pb2.Speculation.Proposer.Value(f"PROPOSER_{self.proposer.upper()}")
        return speculation if speculation.ListFields() else None
