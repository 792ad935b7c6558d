"""Run an orchestrator process: listen, wait for the peers, serve, drain."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import cast

from orchestrator.access.access import Access, OpenAccess
from orchestrator.access.authentication import AuthenticationInterceptor
from orchestrator.access.vouching import Vouching
from orchestrator.contract.events import chat_closing
from orchestrator.contract.operator_service import OperatorService
from orchestrator.processes.draft_changes import DraftChanges
from orchestrator.processes.forwarded_call import Routing, Streaming
from orchestrator.processes.forwarding import ForwardsCalls
from orchestrator.processes.metrics import readings
from orchestrator.processes.other_processes import OtherProcesses
from orchestrator.processes.peer_discovery import Peers
from orchestrator.processes.process_slot import ProcessSlot, address_to_reach, numbered, owner_of
from orchestrator.processes.replicas import Replicas
from orchestrator.processes.settings import OrchestratorSettings
from orchestrator.processes.sibling_status import SiblingStatusService
from orchestrator.sessions.durability.loaded import LoadedSessions
from orchestrator.sessions.entrance.sessions import Sessions
from orchestrator.store.opening import MEMORY, open_store
from orchestrator.store.ownership import Ownership
from orchestrator.store.store import Store
from orchestrator.store.writing import Writing
from orchestrator.watching.acceptance_keeping import AcceptanceKeeping
from orchestrator.watching.watching import Watching
from slipstream.errors import SlipstreamError
from slipstream.event_loop import run_in_loop
from slipstream.garbage import freeze_live_objects
from slipstream.rpc.error_reports import ReportsErrors
from slipstream.rpc.server import AddressInUseError, Server
from slipstream.telemetry.exposition import Exposition
from slipstream.telemetry.logs import configure_logging
from slipstream.telemetry.tracing import exporting_spans
from slipstream.v1 import operator_pb2_grpc, orchestrator_pb2, orchestrator_pb2_grpc

log = logging.getLogger(__name__)

_SERVICE, _OPERATORS = "slipstream.v1.OrchestratorService", "slipstream.v1.OperatorService"
_METHODS = [method.name for method in orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"].methods]

_MAX_REQUEST_BYTES = 16 * 2**20
"""Most bytes of a request. A prompt of a million tokens takes 4 MB on the wire. The longest text
that is read for a context of 131,072 tokens takes 8 MB."""

_CHAT = "/slipstream.v1.OrchestratorService/Chat"

_LAST_WORDS_SECONDS = 0.5
"""Seconds in which streams send their last events after all turns have ended."""

_COLLECTED_AFTER = 50_000
"""New objects after which the garbage collector runs. A round makes hundreds of objects and frees
them without the collector, which is needed only for reference cycles."""


def run_process(settings: OrchestratorSettings, slot: ProcessSlot | None = None) -> None:
    """Serve until signalled; with a ``slot``, as one of several processes behind one port. Exits
    with one readable line if the process cannot serve."""
    name = "orchestrator" if slot is None else f"orchestrator {slot.number}"
    configure_logging(name, settings.log_level, settings.log_format)
    try:
        with exporting_spans("orchestrator"):
            run_in_loop(_serve(settings, slot))
    except SlipstreamError as error:
        sys.exit(f"orchestrator: {error}")


async def _serve(settings: OrchestratorSettings, slot: ProcessSlot | None) -> None:
    number = 0 if slot is None else slot.number
    listening, connector = settings.listening(), settings.connector()
    watching = Watching(settings.trace_detail)
    authentication = AuthenticationInterceptor({_CHAT: chat_closing})
    forwarding = ForwardsCalls()
    server = Server(
        settings.address,
        (_SERVICE, _OPERATORS),
        drain_seconds=_LAST_WORDS_SECONDS,
        own=[] if slot is None else _own_ports(settings, slot),
        max_request_bytes=_MAX_REQUEST_BYTES,
        listening=dataclasses.replace(listening, admin_address=numbered(listening.admin_address, number)),
        interceptors=(
            ReportsErrors(_SERVICE, _METHODS, watching.call_refused),
            *((authentication,) if settings.access else ()),
        ),
        innermost=(forwarding,),
    )
    peers = Peers(settings, connector)
    async with AsyncExitStack() as stack:
        store = open_store(settings.store_place)
        stack.callback(store.close)
        acceptance = AcceptanceKeeping(watching.acceptance, store.acceptance)
        stack.push_async_callback(acceptance.write)
        stack.push_async_callback(peers.close)
        loaded = LoadedSessions(max_count=settings.max_session_count, ttl_seconds=settings.session_ttl_seconds)
        if slot is None:
            own_address = settings.advertise or address_to_reach(settings.address, server.bind())
        else:
            own_address = slot.own_address
        me = owner_of(own_address)
        access = await _access(settings, store, [own_address, *([] if slot is None else [slot.address(number)])])
        if isinstance(access, Access):
            authentication.guard(access)
        ownership = Ownership(store, me, settings.session_lease_seconds)
        writing = Writing(store)
        sessions = Sessions(
            loaded,
            store,
            ownership,
            lambda: f"still waiting for the verifier service at {peers}",
            watching,
            max_count=settings.max_session_count,
            admission=settings.admission,
            is_durable=settings.store_place != MEMORY and (slot is None or not slot.owns_file(settings.store_place)),
        )
        address = numbered(settings.metrics_address, number)
        source = partial(readings, sessions, peers, watching, writing, asyncio.get_running_loop())
        stack.enter_context(Exposition("orchestrator", address, source))
        await stack.enter_async_context(sessions)
        replicas = Replicas(ownership, slot, connector)
        stack.push_async_callback(replicas.close)
        service = SiblingStatusService(sessions, watching, peers, acceptance, access, replicas, number)
        forwarding.start(Routing(sessions.takeover, access, replicas), cast(Streaming, service.WatchTurn))
        orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(service, server.grpc)
        operators = OperatorService(
            DraftChanges(peers),
            OtherProcesses(replicas, access),
            access,
            me,
            anyone_operates=settings.anyone_operates,
            drafts_per_session=settings.drafts_per_session,
        )
        operator_pb2_grpc.add_OperatorServiceServicer_to_server(operators, server.grpc)
        if slot is None:
            await _listen(server)
        connecting = asyncio.create_task(_connect(peers, sessions, writing, acceptance, server))
        await server.run_until_signalled(
            lambda: sessions.tasks.drain(settings.drain_seconds, lambda: peers.verifiers.reachable)
        )
        connecting.cancel()
        await asyncio.wait([connecting])
    if not connecting.cancelled() and (failure := connecting.exception()) is not None:
        raise failure


def _own_ports(settings: OrchestratorSettings, slot: ProcessSlot) -> list[str]:
    """Return the addresses where one of several processes listens besides the shared port."""
    own = [slot.address(slot.number)]
    if slot.advertised:
        own.append(slot.advertised_port(settings.address))
    return own


async def _access(settings: OrchestratorSettings, store: Store, own_names: list[str]) -> Access | OpenAccess:
    """Return the access rules. Other processes call this one by its ``own_names``.
    AccessFileError."""
    if not settings.access:
        return OpenAccess()
    return Access(Path(settings.access), Vouching(await store.secret(), own_names))


async def _listen(server: Server) -> None:
    log.info("listening on port %d", await server.start())


async def _connect(
    peers: Peers, sessions: Sessions, writing: Writing, acceptance: AcceptanceKeeping, server: Server
) -> None:
    """Wait for the peers, then serve. SlipstreamError if their models cannot be served; the server
    drains in that case."""
    try:
        async with asyncio.TaskGroup() as tasks:
            sessions.serve(await peers.connect(tasks))
            freeze_live_objects()
            gc.set_threshold(_COLLECTED_AFTER)
            # A connection stays with the process that accepted it. On a shared port, only a process
            # that can serve may accept one.
            if server.shares_port:
                await _listen(server)
            target = sessions.pair.target
            log.info("serving %s", target.name)
            await acceptance.note_target(target.name, target.weights_fingerprint)
            tasks.create_task(acceptance.run())
            health = _Health(peers, writing, server)
            tasks.create_task(health.report())
            tasks.create_task(writing.watch(health.changed.set))
    except AddressInUseError:
        server.draining.set()
        raise
    except Exception as error:
        server.draining.set()
        log.exception("cannot serve what the verifier hosts")
        raise SlipstreamError(f"cannot serve what the verifier hosts: {error}") from error


class _Health:
    """Health of this process: it serves if a verifier is reachable and sessions can be written."""

    def __init__(self, peers: Peers, writing: Writing, server: Server) -> None:
        self.changed = asyncio.Event()
        self._peers = peers
        self._writing = writing
        self._server = server

    async def report(self) -> None:
        """Update the health service until cancelled."""
        self._peers.verifiers.on_reachable_changed(self.changed.set)
        while True:
            self.changed.clear()
            verifier_reachable, _ = self._peers.reachable
            await self._server.set_serving(verifier_reachable and self._writing.is_possible)
            await self.changed.wait()
