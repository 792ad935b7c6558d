"""A PostgreSQL server of the tests' own, where its programs are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from slipstream.cli.local import free_address

_DEBIANS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))


def _program(name: str) -> str:
    """Where one of its programs is; skips the test where it is not."""
    found = shutil.which(name) or next(
        (str(path / name) for path in reversed(_DEBIANS) if (path / name).exists()), None
    )
    if found is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql brings it")
    return found


class Server:
    """A server that can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = int(free_address().rpartition(":")[2])
        # The server refuses to run as root: then it runs as the account with the least rights.
        self.owner: str | None = pwd.getpwuid(65534).pw_name if os.getuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        if self.owner is not None:
            shutil.chown(directory, self.owner)
        command = [_program("initdb"), "-D", str(directory / "data"), "-A", "trust", "-U", "slipstream", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, user=self.owner, cwd=directory)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # -F: without fsync, for no test cuts the power. With it the server took half a minute to
        # stop beside a busy disk.
        command = [_program("postgres"), "-F", "-D", str(self.directory / "data"), "-k", str(self.directory)]
        command += ["-h", "127.0.0.1", "-p", str(self.port)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet, user=self.owner, cwd=self.directory)
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.address("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.1)

    def stop(self) -> None:
        """Stop it at once, with all its connections."""
        if self._process is not None:
            self._process.send_signal(2)
            self._process.wait()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Inside, the server and all its processes are stopped, and hold their connections."""
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        stopped = [server, *server.children(recursive=True)]
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in stopped:
                process.resume()

    def address(self, name: str) -> str:
        """Of a database."""
        return f"postgresql://slipstream@127.0.0.1:{self.port}/{name}"

    def new_database(self) -> str:
        """The address of an empty one."""
        self._count += 1
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE sessions_{self._count}")
        return self.address(f"sessions_{self._count}")


@contextmanager
def running_server() -> Iterator[Server]:
    """A server that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="slipstream-postgresql-"))
    try:
        server = Server(directory)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
