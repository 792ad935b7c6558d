"""Names that callers choose get neither into logs nor into spans' status messages."""

from __future__ import annotations

import pytest

from orchestrator.errors import SessionNotFoundError, TurnNotFoundError
from slipstream.engine.errors import UnknownHandleError
from slipstream.engine.leases import Leases
from slipstream.hashed import hashed
from slipstream.hosting.rules import RuleBook, UnknownRuleError
from slipstream.telemetry.tracing import ending_of

SECRET = "sk-secret"
HOSTILE = [
    SECRET,
    f"{SECRET}\n2026-01-01 ERROR forged",
    f"it's {SECRET}",
    f'say "{SECRET}"',
    f"""both ' and " {SECRET}""",
    f"\\' {SECRET}",
    f"\x1b[31m{SECRET}",
    SECRET * 1000,
    f"\ud800{SECRET}",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_spans_status_does_not_quote_a_name(name: str) -> None:
    for error in (
        SessionNotFoundError(f"there is no session {name!r}", session_id=name),
        TurnNotFoundError(f"no message with request_id {name!r} has started a turn"),
    ):
        ending = ending_of(error)
        assert SECRET not in ending.message and "forged" not in ending.message
        assert ending.kind == error.reason
    assert ending_of(SessionNotFoundError("the caller's session isn't there: it's gone")).message.endswith("it's gone")


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_what_a_handle_is_refused_with_does_not_quote_it(name: str) -> None:
    with pytest.raises(UnknownHandleError) as closed:
        Leases(lambda: 0.0).renew(name)
    with pytest.raises(UnknownRuleError) as untold:
        RuleBook(1000).find_rule(name, 5)
    for caught in (closed, untold):
        assert SECRET not in str(caught.value)


def test_a_hash_of_a_name_is_short_and_of_that_name() -> None:
    hashes = [hashed(name) for name in HOSTILE]
    assert len(set(hashes)) == len(HOSTILE)
    assert all(len(one) == 12 and one.isalnum() for one in hashes)
