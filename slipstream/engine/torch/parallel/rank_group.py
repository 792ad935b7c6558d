"""The group of ranks, and what they send to one another in a step."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from slipstream.engine.errors import RankGroupError, UnsupportedModelError

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
_IDLE = timedelta(days=3650)
"""A rank may wait this long for a call: a service may be idle."""


class RankGroup:
    """A rank's place in its group. One thread at a time may use it.

    Each method but `leave` is a collective: all ranks call the same ones in the same order. After
    an error each call raises RankGroupError.
    """

    def __init__(
        self, device: torch.device, starting: dist.ProcessGroup, calling: dist.ProcessGroup, stepping: dist.ProcessGroup
    ) -> None:
        self.device = device
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._starting, self._calling, self._stepping = starting, calling, stepping
        self._failure: str | None = None

    @classmethod
    def join(cls, *, device: str, start_timeout: float, step_timeout: float) -> RankGroup:
        """Wait for all ranks of the environment. RankGroupError if one does not come in
        ``start_timeout`` seconds.

        ``start_timeout`` also bounds how much longer than another one a rank may take to load.
        ``step_timeout`` bounds a step's collective. On ``cuda`` a rank takes the device of its
        LOCAL_RANK.
        """
        place = _own_device(device)
        start, step = timedelta(seconds=start_timeout), timedelta(seconds=step_timeout)
        try:
            dist.init_process_group("gloo", timeout=start)
            # Timeouts are each rank's own: only rank 0 knows whether a call is due.
            calling = dist.new_group(backend="gloo", timeout=step if dist.get_rank() == 0 else _IDLE)
            stepping = dist.new_group(backend="nccl" if place.type == "cuda" else "gloo", timeout=step)
        except (RuntimeError, ValueError) as error:
            raise RankGroupError(
                f"the ranks did not find one another in {start_timeout:g} s: {_line(error)}"
            ) from error
        starting = dist.group.WORLD
        assert starting is not None
        return cls(place, starting, calling, stepping)

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        dist.destroy_process_group()

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Around what all ranks compute together. An error inside ends the group: the other ranks
        wait for what this one will not send."""
        if self._failure is not None:
            raise RankGroupError(self._failure)
        try:
            yield
        except Exception as error:
            self._failure = f"rank {self.rank} of {self.size} cannot go on: {_line(error)}"
            if isinstance(error, (RankGroupError, UnsupportedModelError)):
                raise
            raise RankGroupError(self._failure) from error

    def send(self, numbers: torch.Tensor) -> None:
        """Send int64 numbers of rank 0, in host memory. The others `receive` them."""
        with self._told_of_loss():
            dist.broadcast(numbers, 0, group=self._calling)

    def receive(self, count: int) -> torch.Tensor:
        """Return ``count`` int64 numbers of rank 0, in host memory, as soon as they come."""
        numbers = torch.empty(count, dtype=torch.int64)
        with self._told_of_loss("rank 0"):
            dist.broadcast(numbers, 0, group=self._calling)
        return numbers

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' parts, in their dtype: rank 0's and rank 1's, then rank 2's,
        and so on, added in float32 and rounded once.

        An all-reduce promises no order. A ring adds an element's parts from a rank on that depends
        on the element's place in the tensor, and a library may choose another algorithm for another
        size.
        """
        parts = self._gather(part, self._stepping)
        total = parts[0].float()
        for other in parts[1:]:
            total += other.float()
        return total.to(part.dtype)

    def concatenate(self, part: torch.Tensor) -> torch.Tensor:
        """Return the parts ``[rows, width]`` of all ranks beside one another, ``[rows, ranks *
        width]``. Only rank 0 gets them. On the others all is zero."""
        rows, width = part.shape
        parts = None if self.rank else part.new_empty(self.size, rows, width)
        with self._told_of_loss():
            dist.gather(part.contiguous(), parts if parts is None else list(parts.unbind()), 0, group=self._stepping)
        return part.new_zeros(rows, self.size * width) if parts is None else parts.transpose(0, 1).reshape(rows, -1)

    def minimum(self, number: int) -> int:
        """Return the smallest of the ranks' numbers."""
        return min(int(each) for each in self._told(torch.tensor([number])))

    def share(self, values: torch.Tensor) -> torch.Tensor:
        """Return float32 values ``[ranks, values]`` of all ranks, in host memory."""
        return self._told(values)

    def agree(self, values: Sequence[tuple[str, object]]) -> None:
        """Raise UnsupportedModelError on every rank unless all ranks have the same values. Each has
        a name."""
        digests = [hashlib.sha256(str(value).encode()).digest()[:7] for _, value in values]
        told = self._told(torch.tensor([int.from_bytes(digest, "big") for digest in digests]))
        for (name, _), column in zip(values, told.t().tolist(), strict=True):
            for rank, digest in enumerate(column):
                if digest != column[0]:
                    raise UnsupportedModelError(
                        f"rank {rank} has another {name} than rank 0; all ranks need the same one"
                    )

    def _told(self, numbers: torch.Tensor) -> torch.Tensor:
        return self._gather(numbers, self._starting)

    def _gather(self, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Return the parts ``[rank, ...]`` of all ranks."""
        parts = part.new_empty(self.size * part.shape[0], *part.shape[1:])
        with self._told_of_loss():
            dist.all_gather_single(parts, part.contiguous(), group=group)
        return parts.view(self.size, *part.shape)

    @contextmanager
    def _told_of_loss(self, rank: str = "another rank") -> Iterator[None]:
        """Raise RankGroupError for an error of torch.distributed inside."""
        try:
            yield
        except RuntimeError as error:
            raise RankGroupError(f"{rank} of {self.size} is gone or does not answer: {_line(error)}") from error


def _own_device(device: str) -> torch.device:
    for name in _ENVIRONMENT:
        if not os.environ.get(name, "").isdecimal():
            raise RankGroupError(f"{name} must be a number in a rank's environment, as torchrun sets it")
    place = torch.device(device)
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    return place


def _line(error: Exception) -> str:
    """Return an error in one line, without gloo's place in its source and its advice."""
    return re.sub(r"^\[\S+\.cc:\d+\] ", "", " ".join(str(error).split())).split(". This is ")[0]
