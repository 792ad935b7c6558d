"""The proof: every prompt answered by plain decoding and again through the served system under
disturbances, bit by bit."""

import os

os.environ.setdefault(
    "GRPC_VERBOSITY", "ERROR"
)  # before grpc is imported: every killed service would be a line of its log
