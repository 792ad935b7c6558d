"""The time of day that chaos sets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from proving.chaos.clock import ClockOfDay, can_be_set


@pytest.mark.skipif(not can_be_set(), reason="there is no C compiler to make a clock with that can be set")
def test_a_process_has_the_time_of_day_that_it_is_given_and_its_steady_clock_stays(tmp_path: Path) -> None:
    clock = ClockOfDay(tmp_path)
    clock.set(-3600)
    script = "import time; print(time.time(), time.monotonic())"
    command, environment = [sys.executable, "-c", script], {**os.environ, **clock.environment}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert abs(float(said[0]) - (time.time() - 3600)) < 60
    assert abs(float(said[1]) - time.monotonic()) < 60
