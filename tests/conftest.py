"""What holds for all tests."""

import os

# A test's services go on from nothing, and leave nothing in the cache of whoever runs the tests.
os.environ["SLIPSTREAM_ORCHESTRATOR_LEARNT_DIRECTORY"] = ""
