"""What a peer sends is held against what can be; what cannot be is that peer's fault, by the
field's name."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from types import ModuleType

import pytest
from google.protobuf import duration_pb2

from orchestrator.peers.checking.errors import ITEM_ERRORS, checked_error
from orchestrator.peers.checking.faults import PeerFaultError, PeerFaults
from orchestrator.peers.checking.hints import HintCheck
from orchestrator.peers.checking.infos import TokenizerFiles, check_info, check_load
from orchestrator.peers.checking.results import ProposalCheck, RunCheck, VerificationCheck, check_timing
from orchestrator.peers.model_info import info_of
from proving.hostile.nonsense_infos import INFOS
from proving.hostile.nonsense_results import DRAFT_RESULTS, HINT_RESULTS, RUN_RESULTS, VERIFIER_RESULTS
from slipstream.agreed import MAX_DRAFT_LENGTH
from slipstream.engine import errors as engine_errors
from slipstream.errors import Code, SlipstreamError
from slipstream.hosting import loading_gate, rules
from slipstream.rpc import item_answers
from slipstream.rpc.status import status_of
from slipstream.sampling import faults, structure_errors
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.rule import Acceptance, SamplingRule
from slipstream.structures import trials
from slipstream.v1 import sampling_pb2
from slipstream.wire.v1 import draft_pb2, hint_pb2, model_pb2, rule_pb2, verifier_pb2
from tests.scripted_peers import right_info

RULE = SamplingRule(temperature=0.5)
NOT_OF_ITEMS = ("UNSUPPORTED_MODEL",)


def test_a_right_info_is_taken_at_its_limits() -> None:
    info = right_info()
    check_info(info)
    info.max_draft_length = MAX_DRAFT_LENGTH
    info.ClearField("step_times")
    info.ClearField("sampling_defaults")
    info.kv_token_count = info.kv_page_size = info.row_multiple = 0
    info.name = "/models/Größe 7B"
    check_info(info)
    assert info_of(info).kv_page_size == 1


@pytest.mark.parametrize("name", INFOS)
def test_an_info_that_cannot_be_is_refused_by_its_field(name: str) -> None:
    info = right_info()
    INFOS[name](info)
    with pytest.raises(PeerFaultError) as caught:
        check_info(info)
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.field.split(".")[0] in {field.name for field in info.DESCRIPTOR.fields}
    assert len(str(caught.value)) < 300


def test_a_load_that_cannot_be_is_refused() -> None:
    check_load(model_pb2.Load(step_count=2**40))
    with pytest.raises(PeerFaultError, match="held_page_count"):
        check_load(model_pb2.Load(held_page_count=-1))


def draft_result(item: draft_pb2.ProposeItem) -> draft_pb2.ProposeResult:
    drawn = [rule_pb2.TokenDistribution(token_ids=[token, 1], probabilities=[0.5, 0.5]) for token in (7, 8, 9)]
    return draft_pb2.ProposeResult(handle="a" * 32, round=3, tokens=[7, 8, 9], distributions=drawn)


TESTS_RATIOS = SamplingRule(temperature=0.5, acceptance=Acceptance.RATIO, proposal_top_k=2)


def proposal_check(item: draft_pb2.ProposeItem, rule: SamplingRule = TESTS_RATIOS) -> ProposalCheck:
    return ProposalCheck(item.draft_length, 259, rule)


ITEM = draft_pb2.ProposeItem(draft_length=3)

ELSEWHERE = ("handle", "round", "same result", "100,000 results", "never final")
"""Kinds that a result's check cannot see: the stream of items does, or the deadline."""
LEGAL = {
    "handle unknown for ever",
    "rule unknown for ever",
    "newest round stale",
    "caller blamed for its fields",
    "too short and does not say by how much",
}
"""What a draft may say at any one time; how often is for others to judge."""


@pytest.mark.parametrize(
    "kind", [name for name in DRAFT_RESULTS if name not in LEGAL and not name.startswith(ELSEWHERE)]
)
def test_a_result_that_no_draft_can_answer_is_refused(kind: str) -> None:
    item = ITEM
    proposal_check(item).check(draft_result(item), 0.01)
    check = proposal_check(item)

    def take(results: list[draft_pb2.ProposeResult]) -> None:
        for result in results:
            if result.HasField("error"):
                checked_error(result.error)
            check.check(result, 0.01)

    with pytest.raises(PeerFaultError):
        take(DRAFT_RESULTS[kind](draft_result(item), item))


def test_distributions_come_with_the_ratio_test_and_only_with_it() -> None:
    result = draft_result(ITEM)
    proposal_check(ITEM).check(result, 0.01)
    with pytest.raises(PeerFaultError, match=r"distributions"):
        proposal_check(ITEM, RULE).check(result, 0.01)
    del result.distributions[:]
    proposal_check(ITEM, RULE).check(result, 0.01)


VERIFY_ITEM = verifier_pb2.VerifyItem(tail=[3, 4, 5], proposal=[6, 7])


def verifier_result() -> verifier_pb2.VerifyResult:
    def scored(token: int) -> sampling_pb2.TokenLogprobs:
        likeliest = [sampling_pb2.TokenLogprob(token_id=each, logprob=-1.0 - each) for each in (1, 2)]
        return sampling_pb2.TokenLogprobs(token_id=token, logprob=-0.5, top=likeliest)

    return verifier_pb2.VerifyResult(
        handle="a" * 32,
        round=1,
        accepted_count=1,
        next_token=9,
        prefilled_count=3,
        margin=math.inf,
        logprobs=map(scored, (6, 9)),
        tail_logprobs=map(scored, (4, 5)),
    )


def verification_check(rule: SamplingRule = RULE) -> VerificationCheck:
    return VerificationCheck(VERIFY_ITEM.tail, VERIFY_ITEM.proposal, 259, rule, LogprobRequest(2, True))


LEGAL_OF_A_VERIFIER = {"handle unknown for ever", "rule unknown for ever", "too short and does not say by how much"}


@pytest.mark.parametrize(
    "kind",
    [name for name in VERIFIER_RESULTS if name not in LEGAL_OF_A_VERIFIER and not name.startswith(ELSEWHERE)],
)
def test_a_result_that_no_verifier_can_answer_is_refused(kind: str) -> None:
    check = verification_check()
    check.check(verifier_result(), 0.01)

    def take(results: list[verifier_pb2.VerifyResult]) -> None:
        for result in results:
            if result.HasField("error"):
                raise check.error(result)
            check.check(result, 0.01)

    with pytest.raises(PeerFaultError):
        take(VERIFIER_RESULTS[kind](verifier_result(), VERIFY_ITEM))


RUN_ITEM = verifier_pb2.RunItem(start=verifier_pb2.StartRun(tail=[3, 4, 5], until_length=9))


def run_result() -> verifier_pb2.RunResult:
    verified = verifier_result()
    return verifier_pb2.RunResult(
        handle="a" * 32,
        round=1,
        position=3,
        tokens=(6, 9),
        steps=[verifier_pb2.RunStep(token_count=2)],
        prefilled_count=3,
        margin=math.inf,
        logprobs=verified.logprobs,
        tail_logprobs=verified.tail_logprobs,
    )


def run_check() -> RunCheck:
    return RunCheck(3, 9, RUN_ITEM.start.tail, 259, RULE, LogprobRequest(2, True))


LEGAL_OF_A_RUN = {*LEGAL_OF_A_VERIFIER, "stopped without a stop", "end twice", "part after the end"}


@pytest.mark.parametrize(
    "kind", [name for name in RUN_RESULTS if name not in LEGAL_OF_A_RUN and not name.startswith(ELSEWHERE)]
)
def test_a_part_that_no_verifier_can_send_is_refused(kind: str) -> None:
    check = run_check()
    run_check().check(run_result(), 0.01)

    def take(results: list[verifier_pb2.RunResult]) -> None:
        for result in results:
            if result.HasField("error"):
                raise check.error(result)
            check.check(result, 0.01)

    with pytest.raises(PeerFaultError):
        take(RUN_RESULTS[kind](run_result(), RUN_ITEM))


HINT_ITEM = draft_pb2.DraftItem(start=draft_pb2.StartDraft(tail=[3, 4, 5], until_length=9))


@pytest.mark.parametrize(
    "kind", [name for name in HINT_RESULTS if name not in LEGAL and not name.startswith(ELSEWHERE)]
)
def test_a_hint_that_no_draft_can_send_is_refused(kind: str) -> None:
    hint = hint_pb2.Hint(start=3, tokens=[6], survivals=[0.5], source=hint_pb2.HINT_SOURCE_DRAFT, length_seen=3)
    right = draft_pb2.DraftResult(hints=[hint])
    HintCheck(3, 9, 259).check(right, 0.01)

    def take(results: list[draft_pb2.DraftResult]) -> None:
        for result in results:
            if result.HasField("error"):
                checked_error(result.error)
            HintCheck(3, 9, 259).check(result, 0.01)

    with pytest.raises(PeerFaultError):
        take(HINT_RESULTS[kind](right, HINT_ITEM))


def test_a_structure_can_only_fail_where_there_is_one() -> None:
    failed = verifier_pb2.VerifyResult(error=status_of(structure_errors.StructureFailedError("no token fits")))
    with pytest.raises(PeerFaultError, match="STRUCTURE_FAILED"):
        raise verification_check().error(failed)


def test_what_an_item_took_there_is_held_against_what_it_took_here() -> None:
    timing = model_pb2.ItemTiming(total=duration_pb2.Duration(seconds=30))
    check_timing(timing, 31.0)
    with pytest.raises(PeerFaultError, match=r"timing\.total"):
        check_timing(timing, 1.0)


def reasons_of(module: ModuleType) -> dict[str, Code]:
    own = (each for _, each in inspect.getmembers(module, inspect.isclass) if issubclass(each, SlipstreamError))
    return {each.reason: each.code for each in own if each.reason != "BAD_RESULT"}


def test_every_reason_that_a_model_service_may_give_is_known() -> None:
    said: dict[str, Code] = {}
    for module in (engine_errors, rules, loading_gate, item_answers, faults, structure_errors, trials):
        said |= reasons_of(module)
    unknown = {reason: code for reason, code in said.items() if ITEM_ERRORS.get(reason) != code}
    assert set(unknown) == set(NOT_OF_ITEMS)


@pytest.mark.parametrize("reason", ITEM_ERRORS)
def test_an_error_as_services_give_it_is_taken_as_it_is(reason: str) -> None:
    class RefusedError(SlipstreamError):
        pass

    RefusedError.code, RefusedError.reason, RefusedError.retry_after = ITEM_ERRORS[reason], reason, 0.1
    status = status_of(RefusedError("x" * 5000, cached_length=7, name="läng\n" * 500))
    if reason == "WIRE_VERSION_MISMATCH":
        with pytest.raises(PeerFaultError, match="wire_version"):
            checked_error(status)
        return
    error = checked_error(status)
    assert (error.code, error.reason, error.retry_after) == (ITEM_ERRORS[reason], reason, 0.1)
    assert error.metadata["cached_length"] == "7"


def chunk(name: str, data: bytes, sha256: str | None = None) -> model_pb2.GetTokenizerResponse:
    return model_pb2.GetTokenizerResponse(file_name=name, data=data, sha256=sha256)


BAD_CHUNKS: dict[str, tuple[list[model_pb2.GetTokenizerResponse], str]] = {
    "a path": ([chunk("../../etc/passwd", b"", "x")], "file_name"),
    "a path from the root": ([chunk("/etc/passwd", b"", "x")], "file_name"),
    "no name": ([chunk("", b"", "x")], "file_name"),
    "no end": ([chunk("tokenizer.json", b"{}")], "sha256"),
    "again after its end": ([chunk("a", b"", "x"), chunk("a", b"")], "file_name"),
    "many files": ([chunk(f"file{at}", b"", "x") for at in range(40)], "file_name"),
    "large files": ([chunk(f"file{at}", bytes(16 * 2**20)) for at in range(20)], "data"),
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
def test_files_that_no_tokenizer_has_are_refused(name: str) -> None:
    chunks, field = BAD_CHUNKS[name]
    files = TokenizerFiles()

    def take() -> dict[str, bytes]:
        for each in chunks:
            files.take(each)
        return files.whole

    with pytest.raises(PeerFaultError) as caught:
        take()
    assert caught.value.field == field


def test_faults_are_counted_by_field_and_said_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    clock: Callable[[], float] = lambda: now[0]  # noqa: E731
    counted = PeerFaults("the draft at here:1", clock)
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            counted.note(PeerFaultError("next_token", "must be from 0 to 9, but is 10"))
        now[0] = 11.0
        counted.note(PeerFaultError("margin", "must be from 0 to 9, but is nan"))
    assert counted.counts == {"next_token": 1000, "margin": 1}
    first, second = caplog.messages
    assert "the draft at here:1 sent what cannot be: next_token must be from 0 to 9" in first
    assert "margin" in second and "999 more" in second
