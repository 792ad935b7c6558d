"""The orchestrator: sessions, rounds and the public contract."""

from slipstream.rpc.polling import poll_directly

poll_directly()  # before anything imports grpc
