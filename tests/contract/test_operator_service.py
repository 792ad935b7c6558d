"""OperatorService over a real socket: who may change drafts, how, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import status_pb2

from orchestrator.access.access import Access, OpenAccess
from orchestrator.contract.operator_service import OperatorService
from orchestrator.processes.draft_changes import MOST_DRAFTS, DraftChanges
from orchestrator.rounds.drafts import Drafts
from orchestrator.sessions.admission.principal import Principal
from orchestrator.store.rows import OwnerRow
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.rpc.status import PeerError, error_of_call
from slipstream.v1 import operator_pb2 as pb
from slipstream.v1 import operator_pb2_grpc
from tests.scripted_peers import Draft, side_of

OLD, NEW, OTHER = "10.0.0.1:50053", "10.0.0.2:50053", "draft.internal:50053"


class Peers:
    """Drafts that are reached as soon as they are added."""

    def __init__(self) -> None:
        self.drafts = Drafts()
        self.draft_names: list[str] = []
        self.removed = asyncio.Event()
        self.looking = asyncio.Event()
        """Set when a name is looked up."""
        self.answers = asyncio.Event()
        """Set: lookups take no time."""
        self.answers.set()
        self.refused = ""
        """A name that is refused."""

    def delay_lookups(self) -> None:
        self.answers.clear()
        self.looking.clear()

    async def add_draft(self, name: str) -> None:
        if name == self.refused:
            raise InvalidFieldsError([FieldViolation("address", "is refused")])
        draft = Draft()
        draft.address = name
        self.draft_names += [name] if name not in self.draft_names else []
        self.looking.set()
        await self.answers.wait()
        if name in self.draft_names:
            self.drafts.add(side_of(draft))

    def remove_draft(self, name: str) -> None:
        self.draft_names.remove(name)
        self.drafts.retire(name)
        self.removed.set()


class Others:
    """Stands for another orchestrator, which is away."""

    async def ask(self, method: str, request: Any, context: Any) -> Sequence[pb.ProcessDrafts]:
        return [pb.ProcessDrafts(process_id="q", error=status_pb2.Status(code=14, message=f"{method}: away"))]


class Listed(Access):
    """Access rules: the caller is what the test says."""

    def __init__(self, caller: Principal) -> None:
        self._caller = caller

    def principal_of(self, context: Any) -> Principal:
        return self._caller


class Rig:
    def __init__(self) -> None:
        self.peers = Peers()
        self.changes = DraftChanges(cast(Any, self.peers))

    async def start(self, access: Access | OpenAccess, *, anyone_operates: bool, per_session: int = 1) -> None:
        self.server = grpc.aio.server()
        me = OwnerRow("p", "unix:/here", "")
        service = OperatorService(
            self.changes, Others(), access, me, anyone_operates=anyone_operates, drafts_per_session=per_session
        )
        operator_pb2_grpc.add_OperatorServiceServicer_to_server(service, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.stub = operator_pb2_grpc.OperatorServiceStub(self.channel)

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(None)

    async def add(self, address: str = NEW, by: str = "swap", **trial: Any) -> pb.AddDraftResponse:
        request = pb.AddDraftRequest(request_id=by, address=address, trial=pb.DraftTrial(**trial) if trial else None)
        return await self.stub.AddDraft(request)

    async def set_share(self, address: str = NEW, by: str = "swap", **trial: Any) -> pb.SetDraftShareResponse:
        terms = pb.DraftTrial(**trial) if trial else None
        return await self.stub.SetDraftShare(pb.SetDraftShareRequest(request_id=by, address=address, trial=terms))

    async def remove(self, address: str = NEW, by: str = "swap") -> pb.RemoveDraftResponse:
        return await self.stub.RemoveDraft(pb.RemoveDraftRequest(request_id=by, address=address))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.start(OpenAccess(), anyone_operates=True)
    await rig.peers.add_draft(OLD)
    yield rig
    await rig.stop()


def refused(error: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> PeerError:
    return error_of_call(error.value)


async def test_a_trial_begins_changes_and_ends(rig: Rig) -> None:
    own, other = (await rig.add(share=0.25)).processes
    assert (own.process_id, own.address, other.error.message) == ("p", "unix:/here", "AddDraft: away")
    old, new = own.drafts
    assert (old.address, old.HasField("trial"), new.address, new.trial.share) == (OLD, False, NEW, 0.25)
    assert new.state == pb.DRAFT_STATE_SERVING and new.weights_fingerprint == "w"
    assert 0 < new.trial.lease.ToMilliseconds() <= 60_000
    assert rig.peers.drafts.trial == (NEW, 0.25)
    await rig.set_share(share=0.5, lease=duration_pb2.Duration(seconds=3600))
    assert rig.peers.drafts.trial == (NEW, 0.5)
    (own, _) = (await rig.set_share()).processes
    assert [draft.HasField("trial") for draft in own.drafts] == [False, False] and rig.peers.drafts.trial is None
    await rig.remove(OLD)
    assert rig.peers.draft_names == [NEW]


async def test_an_operator_is_told_why_a_draft_does_not_serve(rig: Rig) -> None:
    draft = Draft()
    draft.address, draft.reachable, draft.trouble = NEW, False, "connection refused"
    rig.peers.draft_names += [NEW, OTHER]  # the other has no address yet
    rig.peers.drafts.add(side_of(draft))
    old, new, other = (await rig.stub.ListDrafts(pb.ListDraftsRequest())).processes[0].drafts
    assert (old.trouble, new.state, new.trouble) == ("", pb.DRAFT_STATE_AWAY, "connection refused")
    assert other.state == pb.DRAFT_STATE_CONNECTING and "no address" in other.trouble


async def test_what_is_sent_twice_happens_once(rig: Rig) -> None:
    for _ in range(2):
        await rig.add(share=0.25)
    assert rig.peers.draft_names == [OLD, NEW]
    for _ in range(2):
        await rig.set_share()
    for _ in range(2):
        await rig.add()
    for _ in range(2):
        await rig.remove(OLD)
    assert rig.peers.draft_names == [NEW]


async def test_where_sessions_ask_several_drafts_there_is_no_trial() -> None:
    rig = Rig()
    await rig.start(OpenAccess(), anyone_operates=True, per_session=2)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await rig.add(share=0.25)
    assert refused(error).violations[0].field == "trial" and "--drafts-per-session 1" in str(refused(error))
    assert not rig.peers.draft_names
    await rig.add()
    assert rig.peers.draft_names == [NEW]
    await rig.stop()


async def test_one_draft_is_on_trial_and_belongs_to_its_request(rig: Rig) -> None:
    await rig.add(share=0.25)
    calls = [
        rig.add(OTHER, by="another", share=0.1),
        rig.add(OTHER, share=0.1),
        rig.add(by="another", share=0.9),
        rig.set_share(by="another", share=0.9),
        rig.set_share(by="another"),
        rig.remove(by="another"),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert refused(error).reason == "DRAFT_ON_TRIAL" and refused(error).metadata["address"] == NEW
    assert rig.peers.drafts.trial == (NEW, 0.25) and rig.peers.draft_names == [OLD, NEW]
    await rig.add(OTHER, by="another")
    assert rig.peers.draft_names == [OLD, NEW, OTHER], "one that is not on trial may be added"


async def test_a_draft_whose_lease_ends_is_removed(rig: Rig) -> None:
    await rig.add(share=0.25, lease=duration_pb2.Duration(nanos=1))
    await rig.peers.removed.wait()
    assert NEW not in rig.peers.draft_names
    assert rig.peers.drafts.trial is None
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await rig.set_share(share=0.5)
    assert refused(error).reason == "DRAFT_NOT_FOUND"


async def test_a_refused_draft_ends_no_trial_of_another(rig: Rig) -> None:
    await rig.add(share=0.25, lease=duration_pb2.Duration(seconds=5))
    rig.peers.refused = OTHER
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await rig.add(OTHER, by="another")
    assert refused(error).reason == "INVALID_FIELDS"
    assert rig.peers.drafts.trial == (NEW, 0.25)
    await rig.set_share(share=0.5)


@pytest.mark.parametrize("trial", [{}, {"share": 0.1}])
async def test_a_draft_that_is_cancelled_during_its_lookup_is_not_there(rig: Rig, trial: dict[str, Any]) -> None:
    rig.peers.delay_lookups()
    adding = asyncio.create_task(rig.add(**trial))
    await rig.peers.looking.wait()
    adding.cancel()
    await rig.peers.removed.wait()
    assert rig.peers.draft_names == [OLD] and rig.peers.drafts.trial is None
    rig.peers.answers.set()
    await rig.add(OTHER, by="another", share=0.1)


async def test_a_cancelled_draft_ends_no_trial_of_another(rig: Rig) -> None:
    await rig.add(share=0.25)
    rig.peers.delay_lookups()
    adding = asyncio.create_task(rig.add(OTHER, by="another"))
    await rig.peers.looking.wait()
    adding.cancel()
    await rig.peers.removed.wait()
    assert rig.peers.draft_names == [OLD, NEW] and rig.peers.drafts.trial == (NEW, 0.25)


async def test_a_request_that_is_repeated_during_the_lookup_outlives_the_first_one(rig: Rig) -> None:
    rig.peers.delay_lookups()
    adding = asyncio.create_task(rig.add(share=0.1))
    await rig.peers.looking.wait()
    again = asyncio.create_task(rig.add(share=0.1))
    await asyncio.wait([again], timeout=0.1)
    adding.cancel()
    await rig.peers.removed.wait()
    rig.peers.answers.set()
    await again
    assert rig.peers.draft_names == [OLD, NEW] and rig.peers.drafts.trial == (NEW, 0.1)


async def test_a_draft_of_the_settings_is_put_on_no_trial(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await rig.add(OLD, share=0.25)
    assert refused(error).reason == "INVALID_FIELDS" and refused(error).violations[0].field == "address"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await rig.set_share(OLD, share=0.25)
    assert refused(error).reason == "DRAFT_NOT_FOUND"


async def test_there_is_a_limit(rig: Rig) -> None:
    for number in range(MOST_DRAFTS - 1):
        await rig.add(f"draft-{number}:1")
    for trial in ({}, {"share": 0.1}):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await rig.add("one-more:1", **trial)
        assert refused(error).reason == "DRAFT_LIMIT"
    assert rig.peers.drafts.trial is None


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":1", "host:0", "host:65536", "host:99999999999", "unix:/run/x", "unix:1", "dns:///host:1",
     "ipv4:10.0.0.1:1", "a,b:1", "h st:1", "host:1\n", "[::1", "[::g]:1", "host:٣", "a" * 300 + ":1", "-:1"],
)  # fmt: skip
async def test_an_address_is_host_and_port(rig: Rig, address: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await rig.add(address)
    assert [violation.field for violation in refused(error).violations] == ["address"]


@pytest.mark.parametrize("address", ["h:1", "10.0.0.1:65535", "[::1]:50053", "a_b.c-d.example.:80"])
async def test_names_and_numbers_are_addresses(rig: Rig, address: str) -> None:
    await rig.add(address)
    assert rig.peers.draft_names == [OLD, address]


@pytest.mark.parametrize(
    ("field", "trial"),
    [
        ("trial.share", {"share": float("nan")}),
        ("trial.share", {"share": float("inf")}),
        ("trial.share", {"share": -0.01}),
        ("trial.share", {"share": 1.01}),
        ("trial.lease", {"share": 0.1, "lease": duration_pb2.Duration()}),
        ("trial.lease", {"share": 0.1, "lease": duration_pb2.Duration(seconds=-5)}),
        ("trial.lease", {"share": 0.1, "lease": duration_pb2.Duration(seconds=3601)}),
        ("trial.lease", {"share": 0.1, "lease": duration_pb2.Duration(seconds=2**62, nanos=2**30)}),
    ],
)
async def test_terms_are_checked_at_the_door(rig: Rig, field: str, trial: dict[str, Any]) -> None:
    for call in (rig.add(**trial), rig.set_share(**trial)):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert [violation.field for violation in refused(error).violations] == [field]
    assert rig.peers.draft_names == [OLD]


@pytest.mark.parametrize("request_id", ["", "x" * 129, "a\nb"])
async def test_a_request_has_an_id(rig: Rig, request_id: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await rig.remove(by=request_id)
    assert [violation.field for violation in refused(error).violations] == ["request_id"]


@pytest.mark.parametrize(
    ("caller", "anyone", "may"),
    [(None, True, True), (None, False, False), (Principal("op", operator=True), False, True), (Principal("x"), False, False)],
)  # fmt: skip
async def test_only_operators_may(caller: Principal | None, anyone: bool, may: bool) -> None:
    rig = Rig()
    await rig.start(OpenAccess() if caller is None else Listed(caller), anyone_operates=anyone)
    try:
        calls: list[Any] = [rig.stub.ListDrafts(pb.ListDraftsRequest()), rig.add(), rig.set_share(), rig.remove()]
        for call in calls:
            if may:
                await call
                continue
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call
            assert refused(error).reason == "OPERATORS_ONLY"
        assert not rig.peers.draft_names
    finally:
        await rig.stop()
