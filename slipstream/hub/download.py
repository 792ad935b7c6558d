"""Download of a model's files from the hub, with lines about how far it is."""

from __future__ import annotations

import errno
import io
import logging
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm

from slipstream.errors import SlipstreamError
from slipstream.hub.files import PICKLE_FILES, SMALL_FILES, WEIGHT_FILES, gguf_files
from slipstream.reasons import Reason
from slipstream.stages import DOWNLOADING, LOOKING, ByteProgress

log = logging.getLogger(__name__)

_ASK_SECONDS = 30.0
_NAMED = 5


class HubError(SlipstreamError):
    """The hub does not give a model, or its files cannot be kept."""

    reason = Reason.BAD_FILE


def download(
    name: str,
    patterns: Sequence[str],
    revision: str | None = None,
    *,
    tell: Callable[[str], None] = log.info,
    nested: bool = False,
) -> Path:
    """Return the directory of the hub's cache with a model's files of these patterns, after the hub
    was asked. Files that are there are not fetched again. The hub's errors are raised unchanged.
    ``tell`` gets lines about how far it is. Files in folders come only if ``nested``."""
    told = _Changes(tell)
    told(f"{LOOKING} {name}")

    class Told(_ToldDownload):
        model, tell = name, told

    ignored = None if nested else "*/*"
    try:
        found = snapshot_download(
            name, revision=revision, allow_patterns=[*patterns], ignore_patterns=ignored, tqdm_class=Told
        )
    finally:
        told.ended = True
    return Path(found)


def pull(name: str, revision: str | None, gguf: str | None, tell: Callable[[str], None]) -> Path:
    """Download the files that a service reads, and return their directory, or the GGUF file.
    HubError says what is missing and what to do."""
    try:
        info = HfApi().model_info(name, revision=revision, timeout=_ASK_SECONDS)
        there = [file.rfilename for file in info.siblings or ()]
        weights = _weights(name, there, gguf)
        directory = download(name, [*SMALL_FILES, *weights], revision, tell=tell, nested=gguf is not None)
    except Exception as error:  # the hub's refusals, the network's failures, a full disk
        raise HubError(explained(error, name, revision)) from error
    return directory / gguf if gguf is not None else directory


def _weights(name: str, there: Sequence[str], gguf: str | None) -> Sequence[str]:
    """Return patterns of the weights to download. HubError if the model has none like them."""
    ggufs = [file for file in there if file.endswith(".gguf")]
    if gguf is not None:
        if gguf not in there:
            raise HubError(f"{name} has no file {gguf}; {_choice(ggufs)}")
        return gguf_files(gguf)
    if any(fnmatch(file, pattern) for file in there for pattern in WEIGHT_FILES):
        return WEIGHT_FILES
    if ggufs:
        raise HubError(f"{name} has no model*.safetensors; {_choice(ggufs)}")
    pickled = any(fnmatch(file, pattern) for file in there for pattern in PICKLE_FILES)
    why = (
        "only pickled weights, which can run any code: choose a repository with safetensors"
        if pickled
        else "no weights"
    )
    raise HubError(f"{name} has {why}")


def _choice(ggufs: Sequence[str]) -> str:
    if not ggufs:
        return "it has no GGUF file"
    shown = ", ".join(ggufs[:_NAMED]) + (f" and {len(ggufs) - _NAMED} more" if len(ggufs) > _NAMED else "")
    return f"choose one of its GGUF files with --gguf: {shown}"


def explained(error: Exception, name: str, revision: str | None = None) -> str:
    """Return one line that says why the hub did not give a model, and what would help."""
    at = f"{name}@{revision}" if revision else name
    login = "log in with 'hf auth login', or set HF_TOKEN"
    match error:
        case HubError():
            return str(error)
        case GatedRepoError():
            return f"{name} is gated: accept its terms at {constants.ENDPOINT}/{name}, then {login}"
        case RevisionNotFoundError():
            return f"{name} has no revision {revision}: give a branch, a tag or a commit"
        case DisabledRepoError():
            return f"{name} is disabled on the hub"
        case RepositoryNotFoundError():
            return f"there is no {name} at {constants.ENDPOINT}; if it is private, {login}"
        case HFValidationError():
            return f"{name} is no name of a model on the hub, such as org/name"
        case HfHubHTTPError() if error.response is not None and error.response.status_code == 429:
            return f"{constants.ENDPOINT} asks to wait, because of too many requests: try again later, or {login}"
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"the disk is full: {at} does not fit into {constants.HF_HUB_CACHE}; HF_HOME names another folder"
        case OSError() if error.filename and error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            return f"{error.filename} cannot be written: {error.strerror}; HF_HOME names another folder"
        case LocalEntryNotFoundError():
            return f"{constants.ENDPOINT} cannot be reached, and {at} is not in the cache here"
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set: nothing can be downloaded"
    return f"{at} was not downloaded from {constants.ENDPOINT}, try again: {' '.join(str(error).split())}"


class _Changes:
    """Tells a line unless it is the one before, or all has ended. The downloader has several bars,
    and closes those of a failed download late."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._last = tell, ""
        self.ended = False

    def __call__(self, line: str) -> None:
        if line != self._last and not self.ended:
            self._last = line
            self._tell(line)


class _ToldDownload(tqdm):  # type: ignore[misc]
    """A progress bar that tells lines instead of drawing: a service's log is no terminal."""

    model = ""
    tell = _Changes(log.info)
    monitor_interval = 0  # no thread that redraws

    def __init__(self, *args: Any, **options: Any) -> None:
        self._progress = ByteProgress(f"{DOWNLOADING} {self.model}", self.tell)
        quiet = {"file": io.StringIO(), "disable": False, "mininterval": 0, "miniters": 1}
        super().__init__(*args, **{**options, **quiet})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Tell how many bytes have come, unless a line was told just now."""
        if self.unit == "B" and self.total:
            self._progress.reach(self.n, self.total)
