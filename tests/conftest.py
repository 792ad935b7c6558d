"""What holds for all tests."""

import os

# A test's services go on from nothing, and leave nothing in the cache of whoever runs the tests.
os.environ["SLIPSTREAM_ORCHESTRATOR_LEARNT_DIRECTORY"] = ""


def pytest_configure() -> None:
    """Nobody's deadline is met by a compiler: what chooses is compiled once, before the workers start, and loaded by each."""
    from slipstream.sampling.choose import warm

    warm()
