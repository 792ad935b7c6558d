"""The verifier service: a target model that checks proposals."""

from slipstream.rpc.polling import poll_directly

poll_directly()  # before anything imports grpc
