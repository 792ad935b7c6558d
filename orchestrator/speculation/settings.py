"""The speculation that a turn asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.speculation.proposal import Source


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """The speculation that a turn asks for. ``draft_length`` 0 is off; None leaves the length to
    the verifier, or under the ratio test to a fixed default. ``source`` None allows all."""

    draft_length: int | None = None
    source: Source | None = None

    @property
    def is_off(self) -> bool:
        """True if the target is to decode plainly."""
        return self.draft_length == 0

    @property
    def sole_source(self) -> Source | None:
        """The only maker that hints may come from, beside the caller's prediction; None if several
        may make them, or none."""
        if self.draft_length == 0:
            return None
        return Source.DRAFT if self.source is None and self.draft_length is not None else self.source

    @property
    def uses_draft(self) -> bool:
        """True if the draft service may be asked."""
        return self.draft_length != 0 and self.source not in (Source.NGRAM, Source.HEADS)

    @property
    def takes_ngrams(self) -> bool:
        """True if hints may come from the session's own tokens."""
        return self.source is Source.NGRAM or (self.source is None and self.draft_length is None)

    @property
    def takes_heads(self) -> bool:
        """True if hints may come from heads of the target, where it has any."""
        return self.source is Source.HEADS or (self.source is None and self.draft_length is None)
