"""What holds for all tests."""

import importlib.util
import os

# Kernels for CUDA devices are interpreted, unless there is one (`make gpu`): Triton looks at this
# as soon as it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# isort: split
from hypothesis import HealthCheck, settings

import slipstream.engine  # noqa: F401 - it changes the environment, as in any service: before the nursery reads that
from slipstream.cli.local import Service
from tests.nursery import Nursery

# A test's services go on from nothing, and leave nothing in the folders of whoever runs the tests.
os.environ["SLIPSTREAM_ORCHESTRATOR_LEARNT_DIRECTORY"] = ""
os.environ["SLIPSTREAM_ORCHESTRATOR_STORE"] = "memory"

Service.start_process = staticmethod(Nursery().start)

# An example is wrong or right, not slow: how long one takes says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Nobody's deadline is met by a compiler: what chooses is compiled once, before the workers
    start, and loaded by each."""
    if importlib.util.find_spec("torch") is None:  # `make versions` runs the tests that need none
        return
    from slipstream.sampling.choose import warm

    warm()
