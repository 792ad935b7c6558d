"""The errors page: each reason with its status code, its meaning and what a caller should do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.reference.descriptors import public_protos
from tools.reference.markdown import cell, generated, table

_HEAD = """# Errors

Every refusal is a gRPC status with a `google.rpc.ErrorInfo` in domain `slipstream`. Its `reason` is
one of the names below; match on it, never on the message. A client that does not know a reason goes
by the status code.

- A bad field comes with a `google.rpc.BadRequest`, which names the field and what would be right.
- A `google.rpc.RetryInfo` means that a retry can help, and when. Retry with the same `request_id`:
  the call then happens once. [Overload](../guides/overload.md) shows the loop.
- In a chat an error comes in band, and the chat goes on.

In Python a refusal raises `PeerError` with `code`, `reason`, `metadata`, `violations` and
`retry_after`.

"""
_COMMENT = re.compile(r"(?P<code>[A-Z_]+): (?P<meaning>.+)", re.DOTALL)
_VALUES = 2
_ENUMS = 5


def page() -> str:
    """Return the page."""
    return (
        generated("protos/slipstream/v1/errors.proto")
        + _HEAD
        + table(["reason", "status", "meaning and action"], _rows())
    )


def _rows() -> Iterator[list[str]]:
    for proto in public_protos():
        for at, enum in enumerate(proto.file.enum_type):
            if enum.name != "ErrorReason":
                continue
            for number, value in enumerate(enum.value):
                found = _COMMENT.fullmatch(" ".join(proto.comment(_ENUMS, at, _VALUES, number).split()))
                name = value.name.removeprefix("ERROR_REASON_")
                if value.number:
                    code = found["code"] if found else "INTERNAL"
                    meaning = found["meaning"] if found else proto.comment(_ENUMS, at, _VALUES, number)
                    yield [f"`{name}`", code, cell(meaning[:1].upper() + meaning[1:])]
