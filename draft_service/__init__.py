"""The draft service: a small model that proposes tokens."""

from slipstream.rpc.polling import poll_directly

poll_directly()  # before anything imports grpc
