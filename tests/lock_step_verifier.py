"""A scripted verifier that no test asks for runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from slipstream.wire.v1 import verifier_pb2, verifier_pb2_grpc


class LockStepVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """A base of verifiers that answer rounds alone."""

    async def Run(self, request_iterator: Any, context: Any) -> AsyncIterator[verifier_pb2.RunResponse]:
        raise AssertionError("no test asks this verifier for runs")
        yield
