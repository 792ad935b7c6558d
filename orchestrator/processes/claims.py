"""Which of several processes answers a request that may come twice: the first to claim its request_id.

A claim is a symbolic link in the processes' common directory: one of them makes it, and all can read it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from pathlib import Path

_KEPT_CLAIMS = 10_000


class Claims:
    """The claims of one process, its latest 10,000, and a view of the others'."""

    def __init__(self, directory: Path, number: int) -> None:
        self._directory = directory
        self._number = number
        self._own: deque[Path] = deque()

    def claim(self, request_id: str) -> int:
        """The number of the process that answers this request: this one's, unless another claimed it before."""
        if not request_id:
            return self._number
        link = self._directory / f"request-{hashlib.blake2b(request_id.encode(), digest_size=16).hexdigest()}"
        try:
            link.symlink_to(str(self._number))
        except FileExistsError:
            try:
                return int(str(link.readlink()))
            except (FileNotFoundError, ValueError):  # given up in this moment, by age
                return self._number
        self._own.append(link)
        if len(self._own) > _KEPT_CLAIMS:
            self._own.popleft().unlink(missing_ok=True)
        return self._number
