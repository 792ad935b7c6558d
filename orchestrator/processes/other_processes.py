"""The same call to all other processes of the store."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.rpc import status_pb2

from orchestrator.access.access import Access, Context, OpenAccess
from orchestrator.errors import NotReadyError
from orchestrator.processes.replicas import Replicas, call_options, is_forwarded
from orchestrator.store.rows import OwnerRow
from slipstream.errors import SlipstreamError
from slipstream.rpc.status import error_of_call, status_of
from slipstream.v1 import operator_pb2, operator_pb2_grpc

_ANSWER_SECONDS = 5.0


class OtherProcesses:
    """The processes that share this one's store, behind the same port or on other machines."""

    def __init__(self, replicas: Replicas, access: Access | OpenAccess) -> None:
        self._replicas = replicas
        self._access = access

    async def ask(self, method: str, request: Any, context: Context) -> list[operator_pb2.ProcessDrafts]:
        """Return what they answer to the same request, one entry for each. A process that cannot be
        reached or refuses has the error in its entry. A call that was forwarded to this process is
        not forwarded again. StoreUnavailableError."""
        if is_forwarded(context):
            return []
        others = await self._replicas.ownership.others()
        return list(await asyncio.gather(*(self._ask(owner, method, request, context) for owner in others)))

    async def _ask(self, owner: OwnerRow, method: str, request: Any, context: Context) -> operator_pb2.ProcessDrafts:
        try:
            channel = await self._replicas.connect(owner.address)
            if channel is None:
                raise NotReadyError(f"the process at {owner.address} cannot be reached")
            options = call_options(context, self._access, owner.address)
            left = options["timeout"]
            options["timeout"] = _ANSWER_SECONDS if left is None else min(left, _ANSWER_SECONDS)
            answer = await getattr(operator_pb2_grpc.OperatorServiceStub(channel), method)(request, **options)
        except grpc.aio.AioRpcError as error:
            return _failed(owner, status_of(error_of_call(error)))
        except SlipstreamError as error:
            return _failed(owner, status_of(error))
        found: operator_pb2.ProcessDrafts = answer.processes[0]
        return found


def _failed(owner: OwnerRow, status: status_pb2.Status) -> operator_pb2.ProcessDrafts:
    return operator_pb2.ProcessDrafts(process_id=owner.id, address=owner.address, error=status)
