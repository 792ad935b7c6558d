"""Lengths of prompts and answers, as options say them: fixed, from a range, or from a
distribution. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from slipstream.bench.goals import BadOptionError

_KINDS = {"normal": 2, "exponential": 1}


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of whole numbers from 1 up."""

    kind: str
    numbers: tuple[float, ...]

    @classmethod
    def parse(cls, text: str, option: str) -> Lengths:
        """Read ``128``, ``64:256``, ``normal:128:32`` (mean, standard deviation) or
        ``exponential:128`` (mean). BadOptionError, which names the option."""
        kind, *rest = text.split(":")
        try:
            if kind in _KINDS:
                numbers = tuple(map(float, rest))
                wrong = len(numbers) != _KINDS[kind] or numbers[0] < 1 or min(numbers) < 0
            else:
                kind, numbers = "range", tuple(float(int(part)) for part in text.split(":"))
                wrong = not 1 <= len(numbers) <= 2 or numbers[0] < 1 or numbers[-1] < numbers[0]
        except ValueError:
            wrong = True
        if wrong:
            forms = "a number (128), a range (64:256), normal:128:32 (mean, deviation) or exponential:128 (mean)"
            raise BadOptionError(f"{option} must be {forms}; but it is {text}")
        return cls(kind, numbers)

    def draw(self, rng: random.Random) -> int:
        """Draw a length."""
        match self.kind:
            case "normal":
                drawn = rng.gauss(*self.numbers)
            case "exponential":
                drawn = rng.expovariate(1 / self.numbers[0])
            case _:
                return rng.randint(int(self.numbers[0]), int(self.numbers[-1]))
        return max(1, round(drawn))
