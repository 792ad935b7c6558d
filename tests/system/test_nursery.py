"""Processes from the tests' nursery are what services are elsewhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import psutil
import pytest

from proving.chaos.clock import ClockOfDay, can_be_set
from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service

FLAGS = ["--model", "arithmetic:"]

LEFT = """
import os, sys
from pathlib import Path
from tests.nursery import Nursery
flags = ["--address", sys.argv[1], "--model", "arithmetic:"]
print(Nursery().start("draft_service", flags, Path(os.devnull), os.environ).pid, flush=True)
sys.stdin.read()
"""


def started(**environment: str) -> Service:
    return Service("draft", "draft_service", free_address(), FLAGS, environment)


def is_forked(service: Service) -> bool:
    return "forkserver" in " ".join(psutil.Process(service.process.pid).cmdline())


def test_a_service_is_forked_with_a_session_a_log_and_an_environment_of_its_own() -> None:
    service = started(SLIPSTREAM_DRAFT_LOG_FORMAT="json")
    try:
        assert is_forked(service)
        service.wait_until_healthy()
        assert os.getsid(service.process.pid) == service.process.pid
        assert '"message": "serving arithmetic:' in service.log.read_text()
        assert service.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            service.process.wait(0.01)
        service.process.terminate()
        assert service.process.wait(60) == service.process.poll() == 0
        service.process.terminate()  # a process that has ended hears nothing
    finally:
        service.stop()


def test_its_status_is_a_signal_or_one_with_a_line_that_says_why() -> None:
    killed, refused = started(), Service("draft", "draft_service", free_address(), ["--model", "/nowhere"], {})
    try:
        killed.process.kill()
        assert killed.process.wait(60) == -signal.SIGKILL
        assert refused.process.wait(60) == 1
        assert "/nowhere" in refused.last_words()
    finally:
        killed.stop()
        refused.stop()


def test_with_what_an_import_would_read_it_is_executed() -> None:
    service = started(OMP_NUM_THREADS="2")
    try:
        assert not is_forked(service)
    finally:
        service.stop()


@pytest.mark.skipif(not can_be_set(), reason="there is no C compiler to make a clock with that can be set")
def test_its_time_of_day_can_be_set_and_is_its_own(tmp_path: Path) -> None:
    clock = ClockOfDay(tmp_path)
    clock.set(-400 * 86_400)
    off, right = (started(SLIPSTREAM_DRAFT_LOG_FORMAT="json", **more) for more in (clock.environment, {}))
    try:
        assert is_forked(off) and is_forked(right)
        days = [(datetime.now(UTC).date() - date_in_log(service)).days for service in (off, right)]
        assert abs(days[0] - 400) <= 1 and abs(days[1]) <= 1  # whose midnight it is
    finally:
        off.stop()
        right.stop()


def date_in_log(service: Service) -> date:
    service.wait_until_healthy()
    found = re.search(r"\b20\d\d-\d\d-\d\d", service.log.read_text())
    assert found, service.log.read_text()
    return date.fromisoformat(found.group())


def test_it_ends_with_the_tests_that_started_it_however_they_end() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEFT, free_address()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as tests:
        assert tests.stdout
        service = psutil.Process(int(tests.stdout.readline()))
        nursery = service.parent()
        assert nursery
        tests.kill()
        for process in (service, nursery):
            process.wait(60)
