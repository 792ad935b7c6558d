"""The verifier service: a target model that checks proposals."""

from slipstream.rpc.grpc_environment import set_grpc_environment

set_grpc_environment()  # before anything imports grpc
