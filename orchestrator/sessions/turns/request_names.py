"""What was asked under which name, so that the same request is answered once. Pure."""

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
    """What a client calls a request, and a ``fingerprint`` of what it asks for. An empty ``id`` is
    none."""

    id: str = ""
    fingerprint: bytes = b""


NAMELESS = RequestName()


def check_request_id(request_id: str) -> None:
    """InvalidFieldsError if it is too long, or nothing that a database could keep."""
    if "\0" in request_id:
        raise InvalidFieldsError([FieldViolation("request_id", "must not hold a NUL character")])
    if len(request_id) > MAX_REQUEST_ID_LENGTH:
        what = f"must have at most {MAX_REQUEST_ID_LENGTH} characters, but has {len(request_id)}"
        raise InvalidFieldsError([FieldViolation("request_id", what)])


class Requests(Generic[AnswerT]):
    """Answers by request_id, the latest ``max_count``."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._answers: OrderedDict[str, tuple[bytes, AnswerT]] = OrderedDict()

    def find(self, name: RequestName) -> AnswerT | None:
        """What the request was answered with, if it was. RequestIdReusedError if it asked for
        something else."""
        check_request_id(name.id)
        known = self._answers.get(name.id) if name.id else None
        if known is None:
            return None
        if known[0] != name.fingerprint:
            raise RequestIdReusedError(f"request_id {name.id!r} came with another content before")
        return known[1]

    def answer_to(self, request_id: str) -> AnswerT | None:
        """What a request was answered with, whatever its content."""
        known = self._answers.get(request_id)
        return None if known is None else known[1]

    def keep(self, name: RequestName, answer: AnswerT) -> None:
        """Note an answer. Requests without a name are not known again."""
        if name.id:
            self._answers[name.id] = (name.fingerprint, answer)
            while len(self._answers) > self._max_count:
                self._answers.popitem(last=False)

    def forget(self, request_id: str) -> None:
        """What was asked has not happened."""
        self._answers.pop(request_id, None)
