"""The engine: paged KV, ragged forwards, batching and one model thread. It never imports grpc,
protobuf or OpenTelemetry."""

import os

# libgomp reads this when torch loads it, so it is set before anything here imports torch. By
# default an idle OpenMP thread spins for milliseconds, on a core that the other services and this
# one's event loop need. 10,000 rounds bridge the gaps between a forward's operations and no more.
# Measured on two cores: a plain round takes 6.3 ms instead of 9.0.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# NumPy's OpenBLAS reads this when NumPy is imported. Heads multiply small matrices, for which a
# second thread gains nothing, and which would spin beside the model's own threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
