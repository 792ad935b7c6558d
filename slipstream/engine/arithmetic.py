"""A model whose answers can be worked out on paper, with optional forward times and acceptance
rates.

The next token after tokens ``t_0 .. t_n`` is ``(t_0 + .. + t_n + n + 1) mod vocabulary``. The sum
is taken over the paged memory, one token id a slot, so a wrong page, slot or length shows at once
in the text. It drives the real services in tests. With a forward time and a disagreement rate it
stands in for models that do not fit on this machine.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import asdict, dataclass
from itertools import accumulate
from urllib.parse import parse_qsl

import numpy as np

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.hidden_heads import HiddenStates
from slipstream.engine.model import MultiStepRunner, Reserved, Segment
from slipstream.engine.pages import pages_in
from slipstream.engine.sequence import PageCopy
from slipstream.processors import Processors
from slipstream.sampling.kernel import Floats32
from slipstream.sampling.rule import LengthDefaults, SamplingDefaults

SCHEME = "arithmetic:"
FIRST_ORDINARY_TOKEN = 3
"""Token 0 pads, 1 starts and 2 ends a turn; see the tokenizer that goes with this model."""

_NOT_IN_LOGITS = ("context", "forward_ms", "row_us")
_PEAK_LOGIT = 30.0
_RANKS = 8


@dataclass(frozen=True, slots=True)
class ArithmeticSettings:
    """``arithmetic:key=value&key=value``: all keys with their defaults and meanings."""

    vocabulary: int = 259
    context: int = 8192
    agreement: float = 1.0
    """Probability that the model's choice follows the plain rule. A hash of position and context
    decides."""
    spread: float = 0.0
    """Probability that, where the model is wrong, its second best token is right; if that is wrong,
    its third; and so on. With 0 no other token is likely. The logits fall by one from rank to rank,
    where the model is right and where it is wrong."""
    half: int = -1
    """0: the model is right only in texts whose first token is even; 1: odd; -1: in all. Two drafts
    of different halves know different texts."""
    forward_ms: float = 0.0
    """Shortest time of a forward, in milliseconds."""
    row_us: float = 0.0
    """Time that each row adds to a forward, in microseconds."""
    ends: int = 1
    """1: the rule may choose the end token. 0: texts end only at their token limit."""

    @classmethod
    def parse(cls, name: str) -> ArithmeticSettings:
        """Read ``arithmetic:...``. UnsupportedModelError names an unknown key or an invalid
        value."""
        values: dict[str, int | float] = {}
        for key, text in parse_qsl(name.removeprefix(SCHEME), keep_blank_values=True):
            kind = cls.__annotations__.get(key)
            if kind is None:
                raise UnsupportedModelError(f"{SCHEME} has no key {key!r}; it has {', '.join(cls.__annotations__)}")
            try:
                values[key] = int(text) if kind == "int" else float(text)
            except ValueError:
                raise UnsupportedModelError(f"{SCHEME} {key} must be a number, but is {text!r}") from None
        return cls(**values)  # type: ignore[arg-type]

    @property
    def fingerprint(self) -> str:
        """All settings that change a logit. Forward times and the context length do not."""
        counted = {name: value for name, value in asdict(self).items() if name not in _NOT_IN_LOGITS}
        return SCHEME + " ".join(f"{name}={value}" for name, value in sorted(counted.items()))


def next_token(context_sum: int, position: int, settings: ArithmeticSettings) -> int:
    """Return the token at ``position`` by the plain rule, after a context whose ids sum to
    ``context_sum``."""
    token = (context_sum + position) % settings.vocabulary
    low = 2 if settings.ends else FIRST_ORDINARY_TOKEN
    return token if token >= low else token + FIRST_ORDINARY_TOKEN


class ArithmeticModel:
    """Facts of the model: a `slipstream.engine.model.ModelFacts`."""

    architecture = "Arithmetic"
    dtype = "float32"
    device = "cpu"
    sampling_defaults = SamplingDefaults()
    length_defaults = LengthDefaults()

    def __init__(self, settings: ArithmeticSettings) -> None:
        self.vocabulary_size = settings.vocabulary
        self.context_length = settings.context
        self.end_token_ids: tuple[int, ...] = (2,)
        self.weights_fingerprint = settings.fingerprint


class ArithmeticBackend:
    """Backend of the arithmetic model. Logits peak at the chosen token and are flat elsewhere."""

    mark = hashlib.sha256(SCHEME.encode()).hexdigest()[:4]
    row_multiple = 1
    pads_sequences = False
    hidden_states: HiddenStates | None = None
    multi_step_runner: MultiStepRunner | None = None
    multi_step = True
    processors = Processors()
    warmed_lengths: tuple[int, ...] = ()
    settled_after = 0

    def __init__(self, settings: ArithmeticSettings, *, page_size: int = 16, single_rows: bool = False) -> None:
        self.model = ArithmeticModel(settings)
        self.single_rows = single_rows
        self._settings = settings
        self._page_size = page_size
        self._slots = np.zeros((0, 0), dtype=np.int64)

    def reserve(self, memory_mib: float) -> Reserved:
        page_bytes = self._page_size * self._slots.itemsize
        page_count = pages_in(memory_mib, page_bytes)
        self._slots = np.zeros((page_count + 1, self._page_size), dtype=np.int64)
        return Reserved(page_count, self._page_size, page_count * page_bytes)

    def copy_pages(self, copies: list[PageCopy]) -> None:
        for copy in copies:
            self._slots[copy.destination] = self._slots[copy.source]

    def erase_pages(self, pages: list[int]) -> None:
        self._slots[pages] = 0

    def forward(self, segments: list[Segment]) -> Floats32:
        started = time.perf_counter()
        logits = np.zeros((sum(segment.wanted for segment in segments), self._settings.vocabulary), dtype=np.float32)
        row = row_count = 0
        for segment in segments:
            sums = self._sums(segment)
            is_known = self._settings.half < 0 or self._first_token(segment) % 2 == self._settings.half
            for position, context_sum in enumerate(sums, segment.end - segment.wanted + 1):
                for rank, token in enumerate(self._ranked(context_sum, position, is_known=is_known)):
                    logits[row, token] = _PEAK_LOGIT - rank
                row += 1
            row_count += len(segment.tokens)
        duration = self._settings.forward_ms / 1e3 + self._settings.row_us / 1e6 * row_count
        left = duration - (time.perf_counter() - started)
        if left > 0:  # a sleep of no time takes a tenth of a millisecond
            time.sleep(left)
        return logits

    def _sums(self, segment: Segment) -> list[int]:
        """Write a segment's tokens to their slots. Returns the sum of all tokens up to each wanted
        one."""
        size, pages = self._page_size, segment.pages[: -(-segment.end // self._page_size)]
        slots = self._slots.reshape(-1)
        for place, token in enumerate(segment.tokens, segment.start):
            slots[pages[place // size] * size + place % size] = token
        written = self._slots.take(pages, axis=0).reshape(-1)
        first = segment.end - segment.wanted
        return list(accumulate(written[first + 1 : segment.end].tolist(), initial=int(written[: first + 1].sum())))

    def _first_token(self, segment: Segment) -> int:
        return int(self._slots[segment.pages[0], 0])

    def _ranked(self, context_sum: int, position: int, *, is_known: bool) -> list[int]:
        """Return the likeliest tokens, best first. If the text is not one that the model knows,
        they are wrong."""
        settings = self._settings
        right = next_token(context_sum, position, settings)
        if is_known and settings.agreement >= 1 and not settings.spread:
            return [right]
        scattered = ((context_sum * 2654435761 + position * 40503) >> 7) % 100_003 / 100_003
        wrong = [
            FIRST_ORDINARY_TOKEN + (right + rank) % (settings.vocabulary - FIRST_ORDINARY_TOKEN)
            for rank in range(1, _RANKS if settings.spread else 2)
        ]
        if not is_known:
            return wrong
        if scattered < settings.agreement:
            return [right, *wrong] if settings.spread else [right]
        if not settings.spread:
            return wrong
        missed = (scattered - settings.agreement) / (1 - settings.agreement)
        rank = 1 + int(math.log(max(1e-9, 1 - missed)) / math.log(1 - settings.spread)) if settings.spread < 1 else 1
        return [*wrong[:rank], right, *wrong[rank:]]
