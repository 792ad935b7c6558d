"""The proof: plain decoding answers every prompt, and the served system answers it again under
disturbances, bit for bit."""

import os

os.environ.setdefault(
    "GRPC_VERBOSITY", "ERROR"
)  # before grpc is imported: every killed service would be a line of its log
