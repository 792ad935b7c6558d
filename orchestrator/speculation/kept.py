"""What is learnt as plain numbers, to be kept between starts, and back. Pure.

What comes back is a beginning and not the truth: machines and models change. So it counts for no
more than a few rounds' observations, and all that does not look like what is kept is refused as a
whole.
"""

from __future__ import annotations

from typing import ClassVar

Plain = float | list["Plain"] | dict[str, "Plain"]
"""As JSON has it."""


LARGEST = 1e12
"""Of what is learnt: seconds, tokens and rounds are far fewer, and sums of these stay finite."""


class NotKeptError(ValueError):
    """What was to be taken is not what has been kept."""


class Kept:
    """Something learnt, whose attributes named in KEPT are numbers, lists of numbers, or Kept
    themselves."""

    KEPT: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Plain]:
        """What has been learnt."""
        state: dict[str, Plain] = {}
        for name in self.KEPT:
            value = getattr(self, name)
            if isinstance(value, Kept):
                state[name] = value.state()
            elif isinstance(value, list):
                state[name] = [item.state() if isinstance(item, Kept) else item for item in value]
            else:
                state[name] = value
        return state

    def take(self, state: Plain) -> None:
        """Go on from what `state` said. NotKeptError, and then nothing of this may be used any
        more."""
        if not isinstance(state, dict) or state.keys() != set(self.KEPT):
            raise NotKeptError(f"{type(self).__name__} has {', '.join(self.KEPT)}")
        for name, given in state.items():
            setattr(self, name, _taken(getattr(self, name), given))


def number(given: Plain) -> float:
    """A number from 0 to LARGEST. NotKeptError."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= LARGEST:
        raise NotKeptError(f"not a number from 0 to {LARGEST:g}")
    return given


def numbers(given: Plain, count: int) -> list[float]:
    """So many of them."""
    if not isinstance(given, list) or len(given) != count:
        raise NotKeptError(f"not a list of {count}")
    return [number(each) for each in given]


def check_shares(parts: list[float], wholes: list[float]) -> None:
    """NotKeptError if any part is more than its whole."""
    if any(part > whole for part, whole in zip(parts, wholes, strict=True)):
        raise NotKeptError("more was accepted than was tried")


def faded(observed: list[float], total: float, most: float) -> list[float]:
    """Observations scaled so that a ``total`` of theirs counts for ``most`` at most."""
    return [each * most / total for each in observed] if total > most else observed


def _taken(current: object, given: Plain) -> object:
    if isinstance(current, Kept):
        current.take(given)
        return current
    if isinstance(current, list):
        if not isinstance(given, list) or len(given) != len(current):
            raise NotKeptError(f"not a list of {len(current)}")
        return [_taken(own, each) for own, each in zip(current, given, strict=True)]
    return number(given)
