"""The model that a service hosts, as the service reports it."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.processors import Processors
from slipstream.rpc.sampling_wire import defaults_of, lengths_of
from slipstream.rpc.wire import seconds
from slipstream.sampling.rule import LengthDefaults, SamplingDefaults
from slipstream.wire.v1 import model_pb2

_AS_MUCH = 0.9
"""Share of a target's step from which on a draft's step counts as long as the target's. With a step
of this share and eight tokens that are always right, the target makes 2 % more tokens. More: drafts
that cannot pay are tried."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Model of a service; fields as in model.proto."""

    name: str
    architecture: str
    vocabulary_size: int
    tokenizer_fingerprint: str
    context_length: int
    end_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults
    dtype: str
    device: str
    max_draft_length: int
    weights_fingerprint: str
    sampling_version: int
    step_times: tuple[tuple[int, float], ...] = field(default=(), compare=False)
    """(token count, seconds) of forwards, as the service measured them at its start."""
    row_multiple: int = field(default=1, compare=False)
    """Multiple that a forward's tokens are padded to."""
    kv_token_count: int = field(default=0, compare=False)
    """Tokens that all KV pages hold together; 0 if not known."""
    kv_page_size: int = field(default=1, compare=False)
    """Tokens that one KV page holds."""
    length_defaults: LengthDefaults = field(default=LengthDefaults())
    processors: Processors = field(default=Processors(), compare=False)
    """Processors that compute the model."""
    caveats: tuple[str, ...] = field(default=(), compare=False)
    """Promises that do not hold with the model, each as a sentence for people."""
    collect_share: float | None = field(default=None, compare=False)
    """Share of the sequences whose positions the service was told to collect; None if not known."""
    heads: str | None = field(default=None, compare=False)
    """Kind of the heads that make hints inside the service; empty if there are none, None if not
    known."""
    hints_only: bool = field(default=False, compare=False)
    """True for a draft that makes no proposals for the ratio test."""

    def is_negligible_beside(self, target: ModelInfo) -> bool:
        """Return whether this model makes the longest hint within one step of the target, by what
        both measured at their start. False if one of them measured nothing."""
        if not self.step_times or not target.step_times:
            return False
        return target.max_draft_length * self.step_times[0][1] <= target.step_times[0][1]

    def costs_as_much_as(self, target: ModelInfo) -> bool:
        """Return whether a token of this model takes as much time of the processors that both share
        as one of the target, by what both measured at their start.

        Then hints cannot pay there, even if they are always right: the target would have chosen
        the tokens meanwhile. False if one of them measured nothing.
        """
        numbers = self.processors.numbers | target.processors.numbers
        if not (self.step_times and target.step_times and numbers):
            return False
        share = min(1.0, self.processors.thread_count / len(numbers))
        return share * self.step_times[0][1] >= _AS_MUCH * target.step_times[0][1]


def info_of(message: model_pb2.ModelInfo) -> ModelInfo:
    """Return the info of a checked message."""
    return ModelInfo(
        name=message.name,
        architecture=message.architecture,
        vocabulary_size=message.vocabulary_size,
        tokenizer_fingerprint=message.tokenizer_fingerprint,
        context_length=message.context_length,
        end_token_ids=tuple(message.end_token_ids),
        sampling_defaults=defaults_of(message.sampling_defaults),
        dtype=message.dtype,
        device=message.device,
        max_draft_length=message.max_draft_length,
        weights_fingerprint=message.weights_fingerprint,
        sampling_version=message.sampling_version,
        length_defaults=lengths_of(message.length_defaults),
        step_times=tuple((point.token_count, seconds(point.time)) for point in message.step_times),
        row_multiple=max(1, message.row_multiple),
        kv_token_count=message.kv_token_count,
        kv_page_size=max(1, message.kv_page_size),
        processors=_processors_of(message.processors),
        caveats=tuple(message.caveats),
        collect_share=message.collect_share if message.HasField("collect_share") else None,
        heads=message.heads if message.HasField("heads") else None,
        hints_only=message.hints_only,
    )


def _processors_of(message: model_pb2.Processors) -> Processors:
    return Processors(message.machine, frozenset(message.numbers), message.thread_count)
