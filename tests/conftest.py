"""What holds for all tests."""

import importlib.util
import multiprocessing.util
import os
import shutil
import tempfile
from pathlib import Path

# Kernels for CUDA devices are interpreted, unless there is one (`make gpu`): Triton looks at this
# as soon as it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# isort: split
import psutil
import pytest
from hypothesis import HealthCheck, settings

import slipstream.engine  # noqa: F401 - it changes the environment, as in any service: before the nursery reads that
from slipstream.cli.service_process import Service
from tests.nursery import Nursery

ESSENTIAL = [Path(__file__).parent / folder for folder in ("contract", "engine")]
"""Folders that `make test` runs whole."""

# A test's services go on from nothing, and leave nothing in the user's folders.
os.environ["SLIPSTREAM_ORCHESTRATOR_STORE"] = "memory"
# On a busy machine a turn may wait for more than the ten seconds after which it would be refused.
os.environ["SLIPSTREAM_ORCHESTRATOR_QUEUE_SECONDS"] = "300"

Service.start_process = staticmethod(Nursery().start)

# An example is wrong or right, not slow: how long one takes says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare a run, before its workers start."""
    if not hasattr(config, "workerinput"):
        _use_a_folder_of_this_run()
    _compile(config)


def _use_a_folder_of_this_run() -> None:
    """Put the temporary files of tests and services in one folder, and remove it in the end. Remove
    that of a run that was killed. What pytest keeps of the last three runs stays where it is."""
    root, name = Path(tempfile.gettempdir()), f"slipstream-tests-{os.getuid()}-"
    for left in root.glob(f"{name}*"):
        if not psutil.pid_exists(int(left.name.removeprefix(name))):
            shutil.rmtree(left, ignore_errors=True)
    folder = root / f"{name}{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o711)  # PostgreSQL's server runs as another user than root
    # After what multiprocessing itself removes in there, whose priority is -100.
    multiprocessing.util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-1000)
    claims = root / f"slipstream-ports-{os.getuid()}"  # ports are claimed from other runs too
    claims.touch(0o600)
    os.link(claims, folder / claims.name)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(root))
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def _compile(config: pytest.Config) -> None:
    """Compile what chooses tokens once, for no test's deadline allows for a compiler. The unit
    tests need no compiler, and neither do those that `make check` runs on other versions of Python,
    where torch is not installed."""
    if importlib.util.find_spec("torch") is None or config.args == ["tests/unit"]:
        return
    import numpy as np

    from slipstream.sampling.choose import warm

    warm(np.float32, np.int16)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what `make test` runs. In the other folders a test says itself that it is essential."""
    if any(item.path.is_relative_to(folder) for folder in ESSENTIAL):
        item.add_marker("essential")
