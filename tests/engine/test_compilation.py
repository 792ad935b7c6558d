"""Processes that start at the same time compile each function once, and share the work."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from slipstream.compilation import PROGRESS, Unit, compile_shared, unit_name


class _Work:
    """Units that note who runs them, and compile what is not stored."""

    def __init__(self, *names: str) -> None:
        self.names, self.stored, self.running = names, set[str](), set[str]()
        self.compiled: list[tuple[str, str]] = []

    def units(self, *, backwards: bool = False) -> list[Unit]:
        names = self.names[::-1] if backwards else self.names
        return [Unit(name, lambda name=name: self._run(name)) for name in names]  # type: ignore[misc]

    def _run(self, name: str) -> None:
        if name in self.stored:
            return
        assert name not in self.running, "compiled twice at the same time"
        self.running.add(name)
        time.sleep(0.05)
        self.compiled.append((threading.current_thread().name, name))
        self.running.remove(name)
        self.stored.add(name)


def test_two_that_start_together_each_compile_some_and_none_twice(tmp_path: Path) -> None:
    work = _Work("walk", "choosing", "following", "tiles")
    both = [
        threading.Thread(target=compile_shared, args=(work.units(backwards=backwards), tmp_path))
        for backwards in (False, True)
    ]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert sorted(name for _, name in work.compiled) == sorted(work.names)
    assert len({thread for thread, _ in work.compiled}) == 2


def test_a_second_start_loads_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    work = _Work("walk", "choosing")
    compile_shared(work.units(), tmp_path)
    assert [record.getMessage() for record in caplog.records] == [f"{PROGRESS}: {count} of 2" for count in range(3)]
    caplog.clear()
    compile_shared(work.units(), tmp_path)
    assert len(work.compiled) == 2
    assert not caplog.records


@pytest.mark.parametrize("folder", [None, Path("/nowhere/at/all")])
def test_where_nothing_can_be_stored_each_process_compiles_for_itself(folder: Path | None) -> None:
    work = _Work("walk", "choosing")
    compile_shared(work.units(), folder)
    assert len(work.compiled) == 2


def test_a_unit_whose_process_was_killed_is_taken_over(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from slipstream.compilation import Unit, compile_shared\n"
        "compile_shared([Unit('walk', lambda: (print('begun', flush=True), time.sleep(100)))], Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        work = _Work("walk")
        waiting = threading.Thread(target=compile_shared, args=(work.units(), tmp_path))
        waiting.start()
        time.sleep(0.2)
        assert not work.compiled
        other.send_signal(signal.SIGKILL)
        waiting.join()
    assert [name for _, name in work.compiled] == ["walk"]


def test_a_units_name_changes_with_its_sources_and_the_processor(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("1")
    names = {unit_name("walk", [source], "one processor"), unit_name("walk", [source], "another")}
    os.utime(source, (1, 1))
    names.add(unit_name("walk", [source], "one processor"))
    assert len(names) == 3
    assert unit_name("walk", [source], "one processor") in names
