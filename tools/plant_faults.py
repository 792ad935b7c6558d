"""Plant faults, one at a time, in a copy of this checkout, and list those that no test notices.

::

    python tools/plant_faults.py                       # 200 faults over all rooms, an hour
    python tools/plant_faults.py --count 40 --room access
    python tools/plant_faults.py --file orchestrator/store/store.py --count 0   # all of a file

``tools/faults.toml`` says which files are planted in, which tests are run for each, and which
faults nothing can notice. The exit status is 1 if more than one fault in twenty is left, or one of
them has no reason there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.faults import Fault, faults_of

CHECKOUT = Path(__file__).parents[1]
_LISTED = CHECKOUT / "tools" / "faults.toml"
_MOST_LEFT = 0.05
_SLACK_SECONDS = 60.0
_LARGE = ("grpc.aio", "numba", "torch")
"""Imports of the tests that take seconds. They run once, before the test processes are forked."""
_REWRITTEN = "ignore::pytest.PytestAssertRewriteWarning"
"""Warning filter for pytest plugins that these imports have loaded."""
_LOG = "pytest.log"
_TIMES_THE_TESTS = 5.0
"""A fault counts as noticed if its tests take that many times as long, plus `_SLACK_SECONDS`,
because they hang."""


@dataclass(frozen=True)
class Plan:
    """Contents of `faults.toml`."""

    rooms: dict[str, dict[str, list[str]]]
    most: dict[str, int]
    """Most faults of a file, by room."""
    reasons: dict[tuple[str, str, str], str]
    """Reasons that no test can notice a fault, by its file, its line and its text."""

    @classmethod
    def read(cls) -> Plan:
        """Read the plan from its file."""
        listed = tomllib.loads(_LISTED.read_text())
        left = listed.get("left", [])
        reasons = {(each["file"], each["line"], each["becomes"]): each["reason"] for each in left}
        return cls(listed["rooms"], listed.get("most", {}), reasons)

    def reason(self, fault: Fault) -> str | None:
        """Return the reason that no test notices a fault; None if there is none."""
        return self.reasons.get((fault.path, fault.was, fault.becomes))

    def chosen(self, count: int, seed: int, rooms: Sequence[str], files: Sequence[str]) -> list[Fault]:
        """Return ``count`` faults, equally many from each room; 0 returns all. The same seed gives
        the same faults."""
        names = [name for name in self.rooms if not rooms or name in rooms]
        found: list[Fault] = []
        for index, name in enumerate(names):
            own = [path for path in self.rooms[name] if not files or path in files]
            all_of_them = [fault for path in own for fault in faults_of(path, (CHECKOUT / path).read_text())]
            share = count // len(names) + (index < count % len(names)) if count else len(all_of_them)
            drawn = random.Random(seed).sample(all_of_them, len(all_of_them))
            found += list(islice(self._spread(drawn) if count else drawn, share))
        return found

    def _spread(self, drawn: Sequence[Fault]) -> Iterator[Fault]:
        """Return all faults but those beyond their file's limit."""
        counts: Counter[str] = Counter()
        for fault in drawn:
            counts[fault.path] += 1
            if counts[fault.path] <= self.most.get(fault.path, len(drawn)):
                yield fault

    def tests_of(self, path: str) -> list[str]:
        """Return the tests of a file."""
        return next(files[path] for files in self.rooms.values() if path in files)


class Copy:
    """A copy of the checkout, in which faults are planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seconds: dict[str, float] = {}
        """Seconds of a file's tests without a fault."""
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in listed.stdout.splitlines():
            if (CHECKOUT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(CHECKOUT / name, folder / name)

    def check(self, path: str, tests: Sequence[str]) -> None:
        """Run a file's tests without a fault, twice: the first run compiles. SystemExit if they
        fail."""
        if path in self._seconds:
            return
        for _ in range(2):
            began = time.monotonic()
            if self._run(tests, 3600.0) != 0:
                print((self.folder / _LOG).read_text()[-4000:])
                sys.exit(f"the tests of {path} fail without any fault: {' '.join(tests)}")
            self._seconds[path] = time.monotonic() - began

    def notices(self, fault: Fault, tests: Sequence[str]) -> bool:
        """True if a test fails, or all of them hang, with a fault planted."""
        with self._planted(fault):
            return self._run(tests, _TIMES_THE_TESTS * self._seconds[fault.path] + _SLACK_SECONDS) != 0

    @contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        path = self.folder / fault.path
        before, source = path.stat(), path.read_text()
        path.write_text(fault.planted_in(source))
        try:
            yield
        finally:
            path.write_text(source)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # what was compiled of it is good again

    def _run(self, tests: Sequence[str], seconds: float) -> int:
        """Return the tests' exit status, from a child process that has imported the large
        libraries."""
        child = os.fork()
        if not child:
            _become_pytest(self.folder, tests)
        give_up = time.monotonic() + seconds
        try:
            while True:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    return status
                if time.monotonic() > give_up:
                    return -1
                time.sleep(0.05)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # and what the tests have started
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _become_pytest(folder: Path, tests: Sequence[str]) -> None:
    status = 99
    try:
        os.setsid()
        os.chdir(folder)
        sys.path[:] = [str(folder), *(entry for entry in sys.path if Path(entry or ".").resolve() != CHECKOUT)]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tools"]:
            del sys.modules[name]
        os.environ.update(PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1")
        sys.dont_write_bytecode = True
        log = os.open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        import pytest

        status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", _REWRITTEN, *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _import_what_is_large() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("TRITON_INTERPRET", "1")
    for name in _LARGE:
        importlib.import_module(name)


def main() -> None:
    """Plant faults, run their tests, and print what was not noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="faults over all rooms; 0: all that there are")
    parser.add_argument("--seed", type=int, default=1, help="which of them")
    parser.add_argument("--room", action="append", default=[], help="only these rooms")
    parser.add_argument("--file", action="append", default=[], help="only these files")
    parser.add_argument("--list", action="store_true", help="say what would be planted, and plant nothing")
    asked = parser.parse_args()
    plan = Plan.read()
    faults = plan.chosen(asked.count, asked.seed, asked.room, asked.file)
    if asked.list:
        print(*faults, sep="\n")
        return
    _import_what_is_large()
    with tempfile.TemporaryDirectory(prefix="slipstream-faults-") as folder:
        sys.exit(_tell(plan, faults, _left(plan, faults, Copy(Path(folder)))))


def _left(plan: Plan, faults: Sequence[Fault], copy: Copy) -> list[Fault]:
    """Return the faults that no test notices."""
    left = []
    for number, fault in enumerate(faults, 1):
        tests = plan.tests_of(fault.path)
        copy.check(fault.path, tests)
        began = time.monotonic()
        noticed = copy.notices(fault, tests)
        if not noticed:
            left.append(fault)
        seconds = time.monotonic() - began
        print(f"{number}/{len(faults)} {'noticed' if noticed else 'LEFT   '} {seconds:4.0f} s  {fault}", flush=True)
    return left


def _tell(plan: Plan, faults: Sequence[Fault], left: Sequence[Fault]) -> int:
    planted, unnoticed = Counter(fault.path for fault in faults), Counter(fault.path for fault in left)
    print(f"\n{'file':44} planted  left")
    for path, count in planted.items():
        print(f"{path:44} {count:7} {unnoticed[path]:5}")
    print(f"{'all':44} {len(faults):7} {len(left):5}")
    unexplained = [fault for fault in left if plan.reason(fault) is None]
    for fault in left:
        print(
            f"\n{fault}\n    {plan.reason(fault) or 'NO REASON: write a test, or say in tools/faults.toml why none can notice'}"
        )
    return int(bool(unexplained) or len(left) > _MOST_LEFT * len(faults))


if __name__ == "__main__":
    main()
