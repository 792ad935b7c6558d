"""The settings of a client, in layers: those of a message over its stream's over its session's."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from orchestrator.speculation.proposal import Source
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import Acceptance
from slipstream.sampling.structure import Structure
from slipstream.sampling_fields import SamplingFields

ADAPTIVE: Final = "adaptive"
"""The draft length that the verifier chooses for each step."""


@dataclass(frozen=True, slots=True)
class GenerationSettings(SamplingFields[float | None, int | None]):
    """Settings as a client sent them; None for fields that it did not set.

    ``draft_length`` 0 turns drafting off; ADAPTIVE chooses it by measurement. Fields in ``cleared``
    take their default, even if the layers below set them.
    """

    logit_bias: tuple[tuple[int, float], ...] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] | None = None
    max_token_count: int | None = None
    min_token_count: int | None = None
    stop_strings: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_end_tokens: bool | None = None
    include_stop_in_text: bool | None = None
    token_origins: bool | None = None
    logprobs: LogprobRequest | None = None
    structure: Structure | None = None
    acceptance: Acceptance | None = None
    proposal_top_k: int | None = None
    draft_length: int | Literal["adaptive"] | None = None
    proposer: Source | None = None
    task: str | None = None
    do_not_collect: bool | None = None
    cleared: tuple[str, ...] = ()

    def over(self, below: GenerationSettings) -> GenerationSettings:
        """Return these settings, with unset and uncleared fields taken from ``below``."""
        names = {field.name for field in fields(self)}
        said: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        said |= dict.fromkeys(names.intersection(self.cleared))  # what is stored may clear a field of before
        cleared = {*self.cleared, *below.cleared} - {name for name, value in said.items() if value is not None}
        said["cleared"] = tuple(sorted(cleared))
        return replace(below, **said)
