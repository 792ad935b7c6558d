"""What holds for all tests."""

import os

from hypothesis import HealthCheck, settings

# A test's services go on from nothing, and leave nothing in the folders of whoever runs the tests.
os.environ["SLIPSTREAM_ORCHESTRATOR_LEARNT_DIRECTORY"] = ""
os.environ["SLIPSTREAM_ORCHESTRATOR_STORE"] = "memory"

# An example is wrong or right, not slow: how long one takes says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Nobody's deadline is met by a compiler: what chooses is compiled once, before the workers start, and loaded by each."""
    from slipstream.sampling.choose import warm

    warm()
