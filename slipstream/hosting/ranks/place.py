"""The place of a process in a tensor-parallel group: its rank, and how many ranks there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHANNEL = "SLIPSTREAM_RANK_CHANNEL"
"""Variable with the file descriptor of a rank's channel to rank 0, if rank 0 started the rank."""


class PlaceError(ValueError):
    """The environment's variables of ranks do not fit the settings, or each other."""


@dataclass(frozen=True, slots=True)
class Place:
    """A process of a group of ``size`` ranks, of which ``local_size`` share this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    starts_others: bool = False
    """True if this process has to start the other ranks."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise PlaceError(f"RANK must be from 0 to {self.size - 1}, but is {self.rank}")
        if not 0 <= self.local_rank < self.local_size:
            raise PlaceError(f"LOCAL_RANK must be from 0 to {self.local_size - 1}, but is {self.local_rank}")

    def variables(self, port: int) -> dict[str, str]:
        """Return torchrun's variables for this place, with a store on this machine at ``port``."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already: no rank opens one
        }


def place_of(size: int, environment: Mapping[str, str]) -> Place:
    """Return the place of this process in a group of ``size`` ranks.

    A launcher that starts every rank, such as torchrun, says it by RANK and WORLD_SIZE. Without
    them this process is rank 0, and starts the others on this machine. PlaceError if a variable is
    missing or wrong.
    """
    if size == 1:
        return Place()
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return Place(0, size, 0, size, starts_others=True)
    rank, said = _number("RANK", environment), _number("WORLD_SIZE", environment)
    if said != size:
        raise PlaceError(f"WORLD_SIZE is {said}, but --tensor-parallel-size is {size}: they must be equal")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise PlaceError(f"{name} is needed beside RANK: the address of rank 0's machine, as torchrun sets it")
    local_rank = _number("LOCAL_RANK", environment, default=rank)
    return Place(rank, size, local_rank, _number("LOCAL_WORLD_SIZE", environment, default=size))


def _number(name: str, environment: Mapping[str, str], default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise PlaceError(f"{name} must be a whole number beside --tensor-parallel-size, but is {text!r}")
    return int(text)
