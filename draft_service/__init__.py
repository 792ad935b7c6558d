"""The draft service: a small model that proposes tokens."""

from slipstream.rpc.grpc_environment import set_grpc_environment

set_grpc_environment()  # before anything imports grpc
