"""A target's vocabulary beside a draft's: what one's tokens are in the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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
        self.target_ends = () if end is None else (end,)
        """The end token that the target's tokenizer names."""
        self._pieces: dict[int, bytes] = {}

    def piece(self, token: int, ends: Collection[int] = ()) -> bytes:
        """Return the text as which the draft reads a target's token. ``ends`` are the end tokens of
        a caller's rule: they say nothing about the texts of others."""
        if token in ends and token in self.target.special:
            return self._special_piece(self.target.special[token], is_end=True)
        found = self._pieces.get(token)
        if found is None:
            found = self._piece(token)
            if token < self.target.size:
                self._pieces[token] = found
        return found

    def special_of(self, draft_token: int) -> int | None:
        """Return the target's special token of the same text as a draft's, or None."""
        return self.target.special_ids.get(self.draft.special.get(draft_token, ""))

    def translate_tokens(self, tokens: Iterable[int], ends: Collection[int] = ()) -> list[int | None]:
        """Return the draft's token of the same bytes for each of the target's; None if there is
        none. ``ends`` as `piece` has them."""
        found: list[int | None] = []
        for token in tokens:
            piece = self.piece(token, ends)
            spelt = self.draft.encode(piece.decode(errors="replace")).tokens if piece else []
            is_same = len(spelt) == 1 and self.draft.bytes_of(spelt[0]) == piece
            found.append(spelt[0] if is_same else None)
        return found

    def rule(self, rule: SamplingRule, *, first_end: int, first_generated: int) -> SamplingRule:
        """Return the draft's rule for a target's, with two positions in the draft's tokens.

        The draft takes its likeliest tokens at any temperature: the target's noise belongs to the
        target's tokens. What names tokens counts where both have such a token. A structure is left
        to the target.
        """
        ends = frozenset(rule.end_token_ids)
        allowed = self.translate_tokens(rule.allowed_token_ids, ends)
        biased = zip(self.translate_tokens((token for token, _ in rule.logit_bias), ends), rule.logit_bias, strict=True)
        banned = self.translate_tokens(rule.banned_token_ids, ends)
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
        return self._special_piece(content, is_end=token in self.target_ends)

    def _special_piece(self, content: str, *, is_end: bool) -> bytes:
        if content in self.draft.special_ids:
            return content.encode()
        if is_end and self.draft_ends:
            return self.draft.bytes_of(self.draft_ends[0])
        if content == self.target.named.get("bos_token"):
            return self.draft.opening.encode()
        return b"" if content == self.target.named.get("pad_token") else content.encode()
