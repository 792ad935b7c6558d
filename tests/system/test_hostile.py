"""Hostile messages to every method, in the smallest form; and an answer that is not right is
seen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from proving.hostile.attacks import run_attacks
from proving.hostile.bystanders import Bystanders
from proving.hostile.judge import Judge
from proving.hostile.requests import SERVICES
from proving.hostile.run import main
from proving.hostile.structures import StructureAttack
from slipstream.cli.local import LocalServices
from slipstream.cli.service_process import Service, execute
from slipstream.engine.errors import QueueFullError
from slipstream.errors import Code, FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.rpc.status import error_of, status_of
from tests.documented_reasons import documented_reasons


def test_every_service_answers_any_message_rightly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: set[tuple[str, str]] = set()
    judge = Judge.status

    def noted(self: Judge, where: str, status: status_pb2.Status, *, malformed: bool = False) -> None:
        told.add((where, error_of(status).reason))
        judge(self, where, status, malformed=malformed)

    monkeypatch.setattr(Judge, "status", noted)
    report = tmp_path / "hostile.md"
    parts = ["--without-peers", "--structure-seconds", "0", "--attack-seconds", "0"]
    assert main(["--messages", "300", *parts, "--report", str(report)]) == 0, capsys.readouterr().out
    written = report.read_text()
    assert " 0 complaints" in written
    for service in SERVICES:
        assert f"| {service.name} | INVALID_ARGUMENT | INVALID_FIELDS |" in written
    known = {f"OrchestratorService/{method}": reasons for method, reasons in documented_reasons().items()}
    unknown = {(where, reason) for where, reason in told if reason not in known.get(where, {reason})}
    assert not unknown, "the public protos name the reasons of each method"
    assert known.keys() & {where for where, _ in told}


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Execute services, as commands do: a forked one has the memory of all that the tests
    imported."""
    monkeypatch.setattr(Service, "start_process", staticmethod(execute))


@pytest.mark.usefixtures("executed")
def test_hostile_structures_take_neither_memory_nor_a_neighbours_turn() -> None:
    judge = Judge()
    attack = StructureAttack(judge, 5, is_timed=False)
    attack.run()
    assert not judge.complaints
    assert attack.slowest and attack.statuses.total()


@pytest.mark.usefixtures("executed")
def test_a_caller_without_a_token_harms_no_neighbour() -> None:
    judge = Judge()
    lines = run_attacks(judge, 2, "compressed", "resets", is_quick=False)
    assert not judge.complaints, judge.complaints
    assert [line.partition(":")[0] for line in lines] == ["quiet", "compressed", "resets"]


def test_a_bystander_who_is_told_something_else_is_seen(paper: LocalServices) -> None:
    judge = Judge()
    with Bystanders(paper.orchestrator_address, 1, judge, 0) as bystanders:
        bystanders._expected[0][0][0] += 1
        while not bystanders.turn_count:
            time.sleep(0.01)
    assert judge.complaints and "a bystander was told" in judge.complaints[0]


def bare(code: Code, *details: object) -> status_pb2.Status:
    status = status_pb2.Status(code=int(code), message="no")
    for detail in details:
        status.details.add().Pack(detail)
    return status


def info(reason: str, domain: str = "slipstream") -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain=domain)


WRONG: Sequence[tuple[status_pb2.Status, str]] = [
    (status_of(SlipstreamError("our fault")), "is our fault"),
    (status_of(ValueError("unexpected")), "is our fault"),
    (bare(Code.INVALID_ARGUMENT), "has no reason of ours"),
    (bare(Code.INVALID_ARGUMENT, info("INVALID_FIELDS", "else.where")), "has no reason of ours"),
    (bare(Code.NOT_FOUND, info("INVALID_FIELDS")), "has no reason of ours"),
    (bare(Code.INVALID_ARGUMENT, info("INVALID_FIELDS")), "names no field"),
    (bare(Code.RESOURCE_EXHAUSTED, info("QUEUE_FULL")), "is RESOURCE_EXHAUSTED without a RetryInfo"),
    (bare(Code.RESOURCE_EXHAUSTED, info("QUEUE_FULL")), "does not say when to ask again"),
]


@pytest.mark.parametrize(("status", "what"), WRONG, ids=[f"{i} {what}" for i, (_, what) in enumerate(WRONG)])
def test_a_status_that_is_not_right_is_seen(status: status_pb2.Status, what: str) -> None:
    judge = Judge()
    judge.status("OrchestratorService/Generate", status)
    assert any(what in complaint for complaint in judge.complaints), judge.complaints


def test_statuses_that_are_right_are_not_complained_of() -> None:
    judge = Judge()
    for error in (QueueFullError("full"), InvalidFieldsError([FieldViolation("round", "must be another")])):
        judge.status("VerifierService/Verify", status_of(error))
    assert not judge.complaints
    assert judge.statuses.total() == 2


def failed(code: grpc.StatusCode, status: status_pb2.Status | None = None) -> grpc.aio.AioRpcError:
    trailing = () if status is None else rpc_status.to_status(status).trailing_metadata
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*(trailing or ())), details="no")


def test_what_a_call_ends_with_is_judged_by_what_the_caller_did() -> None:
    judge = Judge()
    cancelled, exhausted = failed(grpc.StatusCode.CANCELLED), failed(grpc.StatusCode.RESOURCE_EXHAUSTED)
    judge.call_ended("VerifierService/Verify", cancelled, left=True)
    judge.call_ended("VerifierService/Verify", exhausted, huge=True)
    assert not judge.complaints
    judge.call_ended("VerifierService/Verify", cancelled)
    judge.call_ended("VerifierService/Verify", exhausted)
    judge.call_ended("VerifierService/Verify", failed(grpc.StatusCode.UNKNOWN), malformed=True)
    judge.call_ended("VerifierService/Verify", failed(grpc.StatusCode.DEADLINE_EXCEEDED))
    assert len(judge.complaints) == 4
