"""Requests by their request_id, so that a repeated request gets the same answer. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.errors import RequestIdReusedError
from slipstream.errors import FieldViolation, InvalidFieldsError

MAX_REQUEST_ID_LENGTH = 128

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class RequestName:
    """The request_id of a request, and a ``fingerprint`` of its content. An empty ``id`` is no
    request_id."""

    id: str = ""
    fingerprint: bytes = b""


NAMELESS = RequestName()


def check_request_id(request_id: str) -> None:
    """Raise InvalidFieldsError if a request_id is too long, or no database can hold it."""
    if "\0" in request_id:
        raise InvalidFieldsError([FieldViolation("request_id", "must not hold a NUL character")])
    if len(request_id) > MAX_REQUEST_ID_LENGTH:
        what = f"must have at most {MAX_REQUEST_ID_LENGTH} characters, but has {len(request_id)}"
        raise InvalidFieldsError([FieldViolation("request_id", what)])


class Requests(Generic[AnswerT]):
    """The latest ``max_count`` answers by request_id."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._answers: OrderedDict[str, tuple[bytes, AnswerT]] = OrderedDict()

    def find(self, name: RequestName) -> AnswerT | None:
        """Return the answer to a request; None if there is none.

        RequestIdReusedError if the request_id came with other content before.
        """
        check_request_id(name.id)
        known = self._answers.get(name.id) if name.id else None
        if known is None:
            return None
        if known[0] != name.fingerprint:
            raise RequestIdReusedError(f"request_id {name.id!r} came with another content before")
        return known[1]

    def answer_to(self, request_id: str) -> AnswerT | None:
        """Return the answer to a request_id, with any content; None if there is none."""
        known = self._answers.get(request_id)
        return None if known is None else known[1]

    def remember(self, name: RequestName, answer: AnswerT) -> None:
        """Note an answer. A request without a request_id is not remembered."""
        if name.id:
            self._answers[name.id] = (name.fingerprint, answer)
            while len(self._answers) > self._max_count:
                self._answers.popitem(last=False)

    def forget(self, request_id: str) -> None:
        """Forget a request that had no effect."""
        self._answers.pop(request_id, None)
