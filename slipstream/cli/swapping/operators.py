"""Calls of OperatorService."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from slipstream.cli.reaching import Server
from slipstream.rpc.channel import CLIENT_OPTIONS
from slipstream.rpc.status import error_of_call
from slipstream.rpc.wire import duration
from slipstream.v1 import operator_pb2, operator_pb2_grpc

_ANSWER_SECONDS = 20.0

Processes = Sequence[operator_pb2.ProcessDrafts]


class Operators:
    """The drafts of an orchestrator, and changes in the name of one ``request_id``. Every method
    returns the drafts of all processes, and raises PeerError."""

    def __init__(self, server: Server, request_id: str) -> None:
        """FileError and PlaintextError if the options of ``server`` cannot be right."""
        self.request_id = request_id
        credentials = server.credentials()
        self._metadata = server.metadata()
        if credentials is None:
            self._channel = grpc.insecure_channel(server.address, options=CLIENT_OPTIONS)
        else:
            self._channel = grpc.secure_channel(server.address, credentials, options=CLIENT_OPTIONS)
        self._stub = operator_pb2_grpc.OperatorServiceStub(self._channel)

    def list(self) -> Processes:
        """List the drafts."""
        return self._call(self._stub.ListDrafts, operator_pb2.ListDraftsRequest())

    def add(self, address: str, trial: operator_pb2.DraftTrial | None) -> Processes:
        """Add a draft, on trial if ``trial`` has terms."""
        request = operator_pb2.AddDraftRequest(request_id=self.request_id, address=address, trial=trial)
        return self._call(self._stub.AddDraft, request)

    def set_trial(self, address: str, trial: operator_pb2.DraftTrial | None) -> Processes:
        """Change a trial or renew its lease; without terms it ends, and the draft stays."""
        request = operator_pb2.SetDraftShareRequest(request_id=self.request_id, address=address, trial=trial)
        return self._call(self._stub.SetDraftShare, request)

    def remove(self, address: str) -> Processes:
        """Remove a draft."""
        request = operator_pb2.RemoveDraftRequest(request_id=self.request_id, address=address)
        return self._call(self._stub.RemoveDraft, request)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _call(self, method: Callable[..., Any], request: object) -> Processes:
        try:
            return list(method(request, timeout=_ANSWER_SECONDS, metadata=self._metadata).processes)
        except grpc.RpcError as error:
            raise error_of_call(error) from error  # type: ignore[arg-type]


def trial_terms(share: float, lease_seconds: float) -> operator_pb2.DraftTrial:
    """Return the terms of a trial."""
    return operator_pb2.DraftTrial(share=share, lease=duration(lease_seconds))
