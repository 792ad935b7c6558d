"""Stages of a service's start, in the words with which it logs them. The command line shows the
newest one."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.compilation import PROGRESS

LOOKING = "looking on the hub for"
DOWNLOADING = "downloading"
LOADING = "loading the model"
WARMING = "measuring step times and warming up"
_STAGES = (LOOKING, DOWNLOADING, LOADING, PROGRESS, WARMING)


def last_stage(lines: Iterable[str]) -> str:
    """Return the stage that a service has reached, with how far it is, by the lines that it has
    logged. Empty: it has logged none."""
    stage = ""
    for line in lines:
        stage = next((line[line.index(words) :] for words in _STAGES if words in line), stage)
    return stage
