"""Errors survive the wire: code, reason, metadata and fields on the one side are those on the
other."""

import re
from pathlib import Path
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from orchestrator import errors as orchestrator_errors
from orchestrator.errors import SessionBusyError
from slipstream.engine import errors as engine_errors
from slipstream.errors import Code, FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.hosting import loading_gate, rules
from slipstream.reasons import Audience, Reason
from slipstream.rpc import item_answers
from slipstream.rpc.status import PeerError, abort, error_of, error_of_call, status_of
from slipstream.sampling import faults, structure_errors
from slipstream.v1 import errors_pb2

ERRORS = sorted(
    {
        kind
        for module in (engine_errors, orchestrator_errors, faults, item_answers, rules, loading_gate, structure_errors)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, SlipstreamError) and kind is not SlipstreamError
    },
    key=lambda kind: kind.__name__,
)


def test_codes_are_grpcs() -> None:
    for code in Code:
        assert getattr(grpc.StatusCode, code.name).value[0] == code


PLAIN = [kind for kind in ERRORS if kind.__init__ is SlipstreamError.__init__]


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
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
        passes = kind.code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE) or kind is SessionBusyError
        assert (kind.retry_after is not None) == passes, kind


def test_every_reason_that_a_client_may_meet_is_in_the_contract() -> None:
    contract = {value.name.removeprefix("ERROR_REASON_") for value in errors_pb2.ErrorReason.DESCRIPTOR.values}
    met = {reason.value for reason in Reason if Audience.CALLERS in reason.audience}
    assert met <= contract - {"UNSPECIFIED"} <= set(Reason)


def test_the_contract_says_of_each_reason_the_code_that_it_has() -> None:
    text = Path("protos/slipstream/v1/errors.proto").read_text()
    told = {name: code for code, name in re.findall(r"  // ([A-Z_]+): .*\n(?:  //.*\n)*  ERROR_REASON_(\w+) =", text)}
    codes = {kind.reason: kind.code.name for kind in ERRORS}
    assert {reason: code for reason, code in told.items() if reason in codes} == {
        r: codes[r] for r in told if r in codes
    }
    assert len(told) > 25


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


def test_a_code_that_is_none_is_unknown() -> None:
    for number in (0, 17, -3):
        error = error_of(status_pb2.Status(code=number, message="odd"))
        assert (error.code, error.reason, str(error)) == (Code.UNKNOWN, "UNKNOWN", "odd")


def test_what_a_peer_puts_into_metadata_cannot_break_its_error() -> None:
    status = status_of(PeerError(Code.ABORTED, "ODD", "told", {"message": "m", "violations": "v"}))
    assert error_of(status).metadata == {"message": "m", "violations": "v"}


MANY = [FieldViolation(f"settings.logit_bias[{index}]", "must be from -100 to 100, but is 200") for index in range(400)]
LONG = [FieldViolation("settings.stop_strings[0]", "ü" * 5_000), FieldViolation("other", "must be 1")]


@pytest.mark.parametrize(
    "error",
    [
        InvalidFieldsError(MANY),
        InvalidFieldsError(LONG),
        SlipstreamError("€" * 20_000, note="€" * 20_000, **{f"n{i}": "x" * 300 for i in range(30)}),
    ],
    ids=["many fields", "long fields", "long message and metadata"],
)
async def test_a_long_error_arrives_cut_short_and_says_how_much_more_there_is(error: SlipstreamError) -> None:
    async def refuse(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await abort(context, error)

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(refuse)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Refuser", {"Refuse": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/test.Refuser/Refuse")(b"")
    await server.stop(0)
    trailers = sum(len(key) + len(value) for key, value in caught.value.trailing_metadata())
    assert trailers * 4 / 3 + len(quote(caught.value.details())) < 7 * 1024, "grpc allows 8"
    back = error_of_call(caught.value)
    assert (back.code, back.reason) == (error.code, error.reason)
    assert str(back)[:100] == str(error)[:100]
    status, bad = rpc_status.from_call(caught.value), error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in status.details) == bool(error.violations)
    hidden_count = len(error.violations) - len(bad.field_violations)
    assert (hidden_count > 0) == (len(error.violations) > 10)
    if hidden_count:
        assert back.metadata["more_violation_count"] == str(hidden_count)
        assert str(back).endswith(f"({hidden_count} more are not listed)")
