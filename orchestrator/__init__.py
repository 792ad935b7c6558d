"""The orchestrator: sessions, rounds and the public contract."""

from slipstream.rpc.grpc_environment import set_grpc_environment

set_grpc_environment()  # before anything imports grpc
