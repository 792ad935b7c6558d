"""Marks around each message's content, which show its place in a rendered prompt. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark that was found in a prompt."""

    index: int
    """Index of the message."""
    begins: bool
    """True if the content begins here, False if it ends."""
    start: int
    end: int


class Marks:
    """The marks of one conversation. They are letters and digits, so most templates treat them like
    words."""

    def __init__(self, source: str, contents: Sequence[str]) -> None:
        """``source`` is the template. No content holds a mark, since a mark holds a hash of all
        contents."""
        self._contents = contents
        self._stem = "q" + hashlib.blake2b("\0".join([source, *contents]).encode(), digest_size=6).hexdigest()
        self._pattern = re.compile(rf"[zZ](?i:{self._stem}([ab])([0-9]{{1,9}})z)")

    def around(self, index: int) -> str:
        """Return the content with marks around it. Spaces at its ends stay outside: templates strip
        them."""
        content = self._contents[index]
        core = content.strip()
        begin = len(content) - len(content.lstrip())
        marked = f"z{self._stem}a{index}z{core}z{self._stem}b{index}z"
        return f"{content[:begin]}{marked}{content[begin + len(core) :]}"

    def find(self, rendered: str) -> list[Mark]:
        """Return all marks in the prompt of marked contents, in their order. Templates may change
        their case."""
        return [
            Mark(int(found[2]), found[1] in "aA", found.start(), found.end())
            for found in self._pattern.finditer(rendered)
        ]


def places(marks: Sequence[Mark], marked: str, text: str, count: int) -> list[int | None]:
    """Return for each of ``count`` messages the place in ``text`` at which its content begins,
    after spaces. None if that is not known.

    ``marked`` is the prompt with marks and ``text`` the prompt without. The places are known until
    the two differ in more than the marks.
    """
    found: list[int | None] = [None] * count
    at = begin = 0
    for mark in marks:
        between = marked[begin : mark.start]
        if not text.startswith(between, at):
            break
        at, begin = at + len(between), mark.end
        if mark.begins and mark.index < count and found[mark.index] is None:
            found[mark.index] = at
    return found
