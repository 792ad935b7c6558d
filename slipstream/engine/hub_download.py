"""Download of a model's files from the hub, with log lines about how far it is."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from tqdm.auto import tqdm

from slipstream.stages import DOWNLOADING, LOOKING, ByteProgress

log = logging.getLogger(__name__)


def download(name: str, patterns: Sequence[str]) -> Path:
    """Return the directory of the hub's cache with a model's files of these patterns, after the hub
    was asked. The hub's errors are raised unchanged."""
    log.info("%s %s", LOOKING, name)

    class Told(_ToldDownload):
        model = name

    return Path(snapshot_download(name, allow_patterns=[*patterns], ignore_patterns="*/*", tqdm_class=Told))


class _ToldDownload(tqdm):  # type: ignore[misc]
    """A progress bar that logs lines instead of drawing: a service's log is no terminal."""

    model = ""
    monitor_interval = 0  # no thread that redraws

    def __init__(self, *args: Any, **options: Any) -> None:
        self._progress = ByteProgress(f"{DOWNLOADING} {self.model}", log.info)
        quiet = {"file": io.StringIO(), "disable": False, "mininterval": 0, "miniters": 1}
        super().__init__(*args, **{**options, **quiet})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Log how many bytes have come, unless a line was logged just now."""
        if self.unit == "B" and self.total:
            self._progress.reach(self.n, self.total)
