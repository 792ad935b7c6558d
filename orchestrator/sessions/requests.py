"""What was asked under which name, so that the same request is answered once. Pure."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Generic, TypeVar

from orchestrator.errors import RequestIdReusedError
from slipstream.errors import FieldViolation, InvalidFieldsError

MAX_REQUEST_ID_LENGTH = 128

AnswerT = TypeVar("AnswerT")


def check_request_id(request_id: str) -> None:
    """InvalidFieldsError if it is too long."""
    if len(request_id) > MAX_REQUEST_ID_LENGTH:
        what = f"must have at most {MAX_REQUEST_ID_LENGTH} characters, but has {len(request_id)}"
        raise InvalidFieldsError([FieldViolation("request_id", what)])


class Requests(Generic[AnswerT]):
    """Answers by request_id, the latest ``max_count``."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._answers: OrderedDict[str, tuple[bytes, AnswerT]] = OrderedDict()

    def find(self, request_id: str, content: object) -> AnswerT | None:
        """What the request was answered with, if it was. RequestIdReusedError if it had another content."""
        check_request_id(request_id)
        known = self._answers.get(request_id) if request_id else None
        if known is None:
            return None
        if known[0] != _digest(content):
            raise RequestIdReusedError(f"request_id {request_id!r} came with another content before")
        return known[1]

    def answer_to(self, request_id: str) -> AnswerT | None:
        """What a request was answered with, whatever its content."""
        known = self._answers.get(request_id)
        return None if known is None else known[1]

    def keep(self, request_id: str, content: object, answer: AnswerT) -> None:
        """Note an answer. Requests without a name are not known again."""
        if request_id:
            self._answers[request_id] = (_digest(content), answer)
            while len(self._answers) > self._max_count:
                self._answers.popitem(last=False)

    def forget(self, request_id: str) -> None:
        """What was asked has not happened."""
        self._answers.pop(request_id, None)


def _digest(content: object) -> bytes:
    """Contents are made of frozen dataclasses, tuples and literals, whose text tells them apart."""
    return hashlib.blake2b(repr(content).encode(), digest_size=16).digest()
