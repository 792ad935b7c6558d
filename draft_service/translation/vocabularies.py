"""A target's vocabulary beside a draft's: what one's tokens are in the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from draft_service.translation.spelling import Spelling
from slipstream.sampling.rule import Acceptance, SamplingRule


class Vocabularies:
    """The two vocabularies of one draft service.

    A special token of the target is the draft's of the same text, or of the same name: the first
    token of a text, the end of a turn. Without such a one it is its own text.
    """

    def __init__(self, target: Spelling, draft: Spelling, draft_ends: Sequence[int]) -> None:
        """``draft_ends`` are the draft model's own end tokens."""
        self.target, self.draft = target, draft
        eos = draft.special_ids.get(draft.named.get("eos_token", ""))
        self.draft_ends = tuple(dict.fromkeys([*([] if eos is None else [eos]), *draft_ends]))
        """The draft's end tokens, the usual one first."""
        end = target.special_ids.get(target.named.get("eos_token", ""))
        self.target_ends = [] if end is None else [end]
        """The target's end tokens, the usual one first, and those that rules have named."""
        self._pieces: dict[int, bytes] = {}

    def know_ends(self, target_ends: Iterable[int]) -> None:
        """Take in the end tokens of a target's rule: it alone says what ends a turn."""
        for token in target_ends:
            if token not in self.target_ends and token in self.target.special:
                self.target_ends.append(token)
                self._pieces.pop(token, None)

    def piece(self, token: int) -> bytes:
        """Return the text as which the draft reads a target's token."""
        found = self._pieces.get(token)
        if found is None:
            found = self._piece(token)
            if token < self.target.size:
                self._pieces[token] = found
        return found

    def special_of(self, draft_token: int) -> int | None:
        """Return the target's special token of the same text as a draft's, or None."""
        return self.target.special_ids.get(self.draft.special.get(draft_token, ""))

    def translate_tokens(self, tokens: Iterable[int]) -> list[int | None]:
        """Return the draft's token of the same bytes for each of the target's; None if there is
        none."""
        found: list[int | None] = []
        for token in tokens:
            spelt = self.draft.encode(self.piece(token).decode(errors="replace")).tokens if self.piece(token) else []
            is_same = len(spelt) == 1 and self.draft.bytes_of(spelt[0]) == self.piece(token)
            found.append(spelt[0] if is_same else None)
        return found

    def rule(self, rule: SamplingRule, *, first_end: int, first_generated: int) -> SamplingRule:
        """Return the draft's rule for a target's, with two positions in the draft's tokens.

        The draft takes its likeliest tokens at any temperature: the target's noise belongs to the
        target's tokens. What names tokens counts where both have such a token. A structure is left
        to the target.
        """
        self.know_ends(rule.end_token_ids)
        allowed = self.translate_tokens(rule.allowed_token_ids)
        biased = zip(self.translate_tokens(token for token, _ in rule.logit_bias), rule.logit_bias, strict=True)
        banned = self.translate_tokens(rule.banned_token_ids)
        return replace(
            rule,
            temperature=0.0,
            end_token_ids=self.draft_ends if rule.end_token_ids else (),
            first_end_position=first_end,
            first_generated_position=first_generated,
            allowed_token_ids=() if None in allowed else tuple(token for token in allowed if token is not None),
            banned_token_ids=tuple(token for token in banned if token is not None),
            logit_bias=tuple(sorted((token, bias) for token, (_, bias) in biased if token is not None)),
            structure=None,
            acceptance=Acceptance.COUPLED,
        )

    def _piece(self, token: int) -> bytes:
        if not 0 <= token < self.target.size:
            return b""
        content = self.target.special.get(token)
        if content is None:
            return self.target.bytes_of(token)
        if content in self.draft.special_ids:
            return content.encode()
        if token in self.target_ends and self.draft_ends:
            return self.draft.bytes_of(self.draft_ends[0])
        if content == self.target.named.get("bos_token"):
            return self.draft.opening.encode()
        return b"" if content == self.target.named.get("pad_token") else content.encode()
