"""Errors survive the wire: code, reason, metadata and fields on the one side are those on the other."""

import grpc
import pytest
from google.rpc import error_details_pb2

from orchestrator import errors as orchestrator_errors
from slipstream.engine import errors as engine_errors
from slipstream.errors import Code, FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.rpc.status import error_of, status_of

ERRORS = sorted(
    {
        kind
        for module in (engine_errors, orchestrator_errors)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, SlipstreamError) and kind is not SlipstreamError
    },
    key=lambda kind: kind.__name__,
)


def test_codes_are_grpcs() -> None:
    for code in Code:
        assert getattr(grpc.StatusCode, code.name).value[0] == code


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_keeps_code_reason_message_and_metadata(kind: type[SlipstreamError]) -> None:
    back = error_of(status_of(kind("what happened", cached_length=7)))
    assert (back.code, back.reason, str(back)) == (kind.code, kind.reason, "what happened")
    assert back.metadata == {"cached_length": "7"}


def test_reasons_are_unique_and_in_capitals() -> None:
    reasons = [kind.reason for kind in ERRORS]
    assert len(set(reasons)) == len(reasons)
    assert all(reason == reason.upper() for reason in reasons)


def test_only_errors_that_a_retry_can_mend_say_so() -> None:
    for kind in ERRORS:
        assert (kind.retry_after is not None) == (kind.code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE)), kind


def test_bad_fields_travel_as_a_bad_request() -> None:
    status = status_of(InvalidFieldsError([FieldViolation("a.b", "must be 1"), FieldViolation("c", "must be 2")]))
    bad = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in status.details)
    assert [(v.field, v.description) for v in bad.field_violations] == [("a.b", "must be 1"), ("c", "must be 2")]
    assert status.message == "a.b must be 1; c must be 2"


def test_a_fault_of_ours_tells_clients_its_kind_and_the_log_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    status = status_of(ZeroDivisionError("secret detail"))
    assert status.code == Code.INTERNAL
    assert "secret" not in status.message
    assert "secret detail" in caplog.text
