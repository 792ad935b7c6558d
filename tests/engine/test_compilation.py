"""Processes that start at the same time compile each function once, and share the work."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slipstream.compilation import PROGRESS, Unit, compile_shared, unit_name
from slipstream.engine.compiled.compilation import units_for
from slipstream.sampling.choose import choosing_unit


class _Work:
    """Units that note who runs them, and compile what is not stored."""

    def __init__(self, *names: str, lock: str = "") -> None:
        self.names, self.lock, self.stored, self.running = names, lock, set[str](), set[str]()
        self.most_at_once = 0
        self.compiled: list[tuple[str, str]] = []

    def units(self, *, backwards: bool = False) -> list[Unit]:
        names = self.names[::-1] if backwards else self.names
        return [Unit(name, lambda name=name: self._run(name), self.lock or name) for name in names]  # type: ignore[misc]

    def _run(self, name: str) -> None:
        if name in self.stored:
            return
        assert name not in self.running, "compiled twice at the same time"
        self.running.add(name)
        self.most_at_once = max(self.most_at_once, len(self.running))
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


def test_units_of_one_lock_are_compiled_one_after_the_other(tmp_path: Path) -> None:
    work = _Work("float32", "int16", lock="choosing")
    both = [
        threading.Thread(target=compile_shared, args=(work.units(backwards=backwards), tmp_path))
        for backwards in (False, True)
    ]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert len(work.compiled) == 2
    assert work.most_at_once == 1


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is in the midst of a unit."""
    code = (
        "import sys, time; from pathlib import Path; from slipstream.compilation import Unit, compile_shared\n"
        "sleep = lambda: (print('begun', flush=True), time.sleep(100))\n"
        "compile_shared([Unit('walk', sleep, 'walk')], Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
        process.kill()


def test_a_unit_whose_process_was_killed_is_taken_over(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    work = _Work("walk")
    waiting = threading.Thread(target=compile_shared, args=(work.units(), tmp_path))
    waiting.start()
    time.sleep(0.2)
    assert not work.compiled
    holder.kill()
    waiting.join()
    assert [name for _, name in work.compiled] == ["walk"]


@pytest.mark.timeout(60)
def test_a_process_that_has_stopped_is_not_waited_for_for_ever(
    tmp_path: Path, holder: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    holder.send_signal(signal.SIGSTOP)
    work = _Work("walk", "another", lock="walk")
    compile_shared(work.units(), tmp_path, patience=0.2)
    assert [name for _, name in work.compiled] == ["walk", "another"]
    assert [str(tmp_path / "slipstream-walk.lock") in record.getMessage() for record in caplog.records] == [True]
    caplog.clear()
    compile_shared(work.units(), tmp_path)  # what is stored needs no lock
    assert len(work.compiled) == 2
    assert not caplog.records


def test_a_full_disk_after_a_unit_is_compiled_does_not_end_the_start(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from slipstream.compilation import Unit, compile_shared\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "compile_shared([Unit('walk', lambda: print('compiled', file=sys.stderr), 'walk')], Path(sys.argv[1]))"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (0, "compiled\n")
    work = _Work("walk")
    compile_shared(work.units(), tmp_path)
    assert len(work.compiled) == 1


def test_each_kind_of_tile_has_index_files_of_its_own(tmp_path: Path) -> None:
    """Numba reads, changes and writes an index without a lock."""
    code = "import sys; from slipstream.engine.compiled.tiles import place_of; place_of(sys.argv[1])"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for kind in ("float_scores", "bf16_scores"):
        subprocess.run([sys.executable, "-c", code, kind], env=environment, check=True)
    assert len(list(tmp_path.rglob("tiles.*.nbi"))) == 2


def test_units_that_store_in_the_same_index_files_have_one_lock() -> None:
    units = units_for(("bf16_products", "bf16_products", "bf16_scores"), choosing_first=True)
    locks = {unit.name.rsplit("-", 1)[0]: unit.lock for unit in units}
    assert locks["choosing-float32"] == locks["following"] == choosing_unit(np.int16).lock
    assert len(set(locks.values())) == len(locks) - 1
    assert len(locks) == 5


def test_a_units_name_changes_with_its_sources_and_the_processor(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("1")
    names = {unit_name("walk", [source], "one processor"), unit_name("walk", [source], "another")}
    os.utime(source, (1, 1))
    names.add(unit_name("walk", [source], "one processor"))
    assert len(names) == 3
    assert unit_name("walk", [source], "one processor") in names
