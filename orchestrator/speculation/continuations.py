"""What the draft has said may come next: paths of tokens, each from a position on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.speculation.proposal import Branch, Proposal

_MAX_PATHS = 256


@dataclass(slots=True)
class _Path:
    start: int
    """Absolute position of the first token."""
    tokens: tuple[int, ...]
    own: int
    """Where the branch's own proposal begins: what comes before was guessed by others."""
    proposal: Proposal
    rank: int
    """Of the branch among those of its request, likeliest first."""
    matched: int = 0
    """How many tokens are known to equal the committed ones."""


class Continuations:
    """Branches in the order they came. A branch that did not come true is dropped as soon as that
    is known."""

    def __init__(self) -> None:
        self._paths: list[_Path] = []
        self.rank: int | None = None
        """Of the branch that the last answer of `after` came from."""

    def add(self, length: int, in_flight: Sequence[int], branch: Branch, rank: int = 0) -> None:
        """A branch of a request made after ``length`` committed tokens with ``in_flight`` being
        verified."""
        tokens, own = branch.path(in_flight)
        if branch.proposal.tokens:
            self._paths.append(_Path(length, tokens, own, branch.proposal, rank))
            del self._paths[:-_MAX_PATHS]

    def after(self, tokens: Sequence[int]) -> Proposal | None:
        """The longest continuation of the committed ``tokens``, if there is one."""
        best: Proposal | None = None
        self.rank = None
        alive = []
        for path in self._paths:
            done = len(tokens) - path.start
            if tuple(tokens[path.start + path.matched : len(tokens)]) != path.tokens[path.matched : done]:
                continue
            path.matched = done
            alive.append(path)
            rest = _rest(path)
            if rest is not None and (best is None or len(rest) > len(best)):
                best, self.rank = rest, path.rank
        self._paths = [path for path in alive if path.matched < len(path.tokens)]
        return best


def _rest(path: _Path) -> Proposal | None:
    """What is left of a path's own proposal. Tokens before it that are still open were guesses
    of another source."""
    skipped = path.matched - path.own
    if skipped < 0 or skipped >= len(path.proposal.tokens):
        return None
    return path.proposal.past(skipped)
