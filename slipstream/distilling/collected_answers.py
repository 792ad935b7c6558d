"""Answers to prompts, as far as a folder's shards have them.

An answer is collected once each of its positions is in a shard, and as long as these shards are
there. A private journal beside the shards keeps which they are: a line has an answer's key, and the
times at which its shards began.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.distilling.asked import note_asked
from slipstream.distilling.records import RecordsError, began_at, read_shard, shard_paths
from slipstream.distilling.waiting_answers import Answer, Piece, WaitingAnswers

JOURNAL = ".answered"


class CollectedAnswers:
    """The answers that are in the shards of a folder, by their keys."""

    def __init__(self, folder: Path) -> None:
        """The folder may not exist yet. RecordsError if something in it cannot be read."""
        self._folder, self._journal = folder, folder / JOURNAL
        self._shards = {repr(began_at(path)): path for path in self._paths()}
        self._last_number = max((int(path.stem) for path in self._shards.values()), default=0)
        self.missed = False
        """True if shards came and went between two looks: they were rotated away."""
        try:
            lines = self._journal.read_text().splitlines() if self._journal.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise RecordsError(f"{self._journal} cannot be read: {error}") from error
        known = (line.split() for line in lines if line.strip())
        self._shards_of = {key: shards for key, *shards in known if self._are_there(shards)}
        self._waiting = WaitingAnswers()
        self._pieces: list[Piece] = []
        """Pieces of no answer yet: a long answer is in shards before it ends."""

    def has(self, key: str) -> bool:
        """Return whether an answer was in the folder when it was looked at last."""
        return self._are_there(self._shards_of.get(key, []))

    def had(self, key: str) -> bool:
        """Return whether an answer was in the folder at some time since this object was made."""
        return key in self._shards_of

    def note_asked(self, asked: Mapping[str, Any]) -> None:
        """Note settings by which answers are asked for. RecordsError if that cannot be written."""
        note_asked(self._folder, asked)

    def expect(self, key: str, prompt_token_count: int, token_ids: Sequence[int]) -> None:
        """Expect an answer in the shards."""
        self._waiting.add(Answer(key, prompt_token_count, np.array(token_ids, dtype=np.int32)))

    def look(self) -> None:
        """Look at the shards that were written or deleted since the last time. RecordsError."""
        paths = self._paths()
        if paths:
            self.missed |= int(paths[0].stem) > self._last_number + 1
            self._last_number = max(self._last_number, int(paths[-1].stem))
        there = {*paths}
        self._shards = {began: path for began, path in self._shards.items() if path in there}
        known = {*self._shards.values()}
        for path in [path for path in paths if path not in known]:
            self._read(path)
        self._match()

    def _match(self) -> None:
        """Give each piece to an answer, and note the answers that are whole."""
        left, whole = [], []
        for piece in self._pieces:
            answer = self._waiting.take(piece)
            if answer is None:
                left.append(piece)
            elif answer.is_whole:
                whole.append(answer)
        self._pieces = left
        if whole:
            self._write(whole)
            self._shards_of |= {answer.key: answer.shards for answer in whole}

    def _paths(self) -> list[Path]:
        return shard_paths(self._folder) if self._folder.exists() else []

    def _are_there(self, shards: list[str]) -> bool:
        return bool(shards) and all(shard in self._shards for shard in shards)

    def _read(self, path: Path) -> None:
        try:
            shard = read_shard(path)
        except RecordsError:
            if path.exists():
                raise
            return  # the verifier has rotated it away
        began = repr(shard.began)
        self._shards[began] = path
        for record in shard.records:
            begin, tokens = int(record.positions[0]), np.array(record.tokens)  # a copy, not a view of the shard
            if begin + len(record.positions) == len(tokens):  # none was dropped in between
                self._pieces.append(Piece(begin, tokens, began))

    def _write(self, answers: Sequence[Answer]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(self._journal, flags, 0o600), "w") as file:
                file.writelines(f"{answer.key} {' '.join(answer.shards)}\n" for answer in answers)
        except OSError as error:
            raise RecordsError(
                f"{self._journal} cannot be written: {error.strerror or error}. Make room there, and run the command again"
            ) from error
