"""The status of all processes that share a port, asked from any of them."""

from __future__ import annotations

import grpc

from orchestrator.access.access import Access, Context, OpenAccess
from orchestrator.contract.service import OrchestratorService, PeersView
from orchestrator.errors import UnauthenticatedError
from orchestrator.processes.replicas import Replicas, call_options, is_away, is_forwarded
from orchestrator.sessions.entrance.sessions import Sessions
from orchestrator.watching.acceptance_keeping import AcceptanceKeeping
from orchestrator.watching.watching import Watching
from slipstream.rpc.status import abort, abort_as
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc


class SiblingStatusService(OrchestratorService):
    """An OrchestratorService whose GetStatus answers for the other processes too."""

    def __init__(
        self,
        sessions: Sessions,
        watching: Watching,
        peers: PeersView,
        acceptance: AcceptanceKeeping,
        access: Access | OpenAccess,
        replicas: Replicas,
        number: int = 0,
    ) -> None:
        super().__init__(sessions, watching, peers, acceptance, access, number)
        self._replicas = replicas

    async def GetStatus(  # noqa: D102
        self, request: orchestrator_pb2.GetStatusRequest, context: Context
    ) -> orchestrator_pb2.GetStatusResponse:
        answers = [await super().GetStatus(request, context)]
        siblings = {} if is_forwarded(context) else await self._replicas.connect_siblings()
        for address, channel in siblings.items():
            stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
            try:
                answers.append(await stub.GetStatus(request, **call_options(context, self._access, address)))
            except UnauthenticatedError as error:  # the caller's token has expired meanwhile
                await abort(context, error)
            except grpc.aio.AioRpcError as error:
                if not is_away(error):
                    await abort_as(context, error)
        processes = [process for answer in answers for process in answer.processes]
        return orchestrator_pb2.GetStatusResponse(processes=sorted(processes, key=lambda process: process.number))
