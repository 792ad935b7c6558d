"""What holds for all tests."""

import os

from hypothesis import HealthCheck, settings

from slipstream.cli.local import ENVIRONMENT, Service
from tests.nursery import Nursery

# A test's services go on from nothing, and leave nothing in the folders of whoever runs the tests.
os.environ["SLIPSTREAM_ORCHESTRATOR_LEARNT_DIRECTORY"] = ""
os.environ["SLIPSTREAM_ORCHESTRATOR_STORE"] = "memory"

# Services are forked from one process, which is to read what any of them would.
os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
Service.start_process = staticmethod(Nursery().start)

# An example is wrong or right, not slow: how long one takes says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Nobody's deadline is met by a compiler: what chooses is compiled once, before the workers start, and loaded by each."""
    from slipstream.sampling.choose import warm

    warm()
