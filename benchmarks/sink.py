"""A server that takes what an OTLP exporter sends and drops it: ``python -m benchmarks.sink
HOST:PORT``."""

from __future__ import annotations

import sys
from concurrent import futures

import grpc


class _Drop(grpc.GenericRpcHandler):
    """Answers every unary call with an empty message."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of one call."""
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")


def main() -> None:
    """Entry point."""
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[_Drop()])
    server.add_insecure_port(sys.argv[1])
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
