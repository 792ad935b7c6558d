"""One process that tries structures, as the service sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Any

from slipstream.interpreter import module_command
from slipstream.sampling.structure import Structure
from slipstream.structures.frames import LENGTH_BYTES, decode_length, encode_frame, encode_length

_START_SECONDS = 120.0
"""Seconds in which a process must be ready, on a busy machine."""

_PIECE_BYTES = 2**18
"""Bytes of a tokenizer written at once. A tokenizer may have 30 MB, and each write is copied on the
event loop."""

_KEPT_ERROR_BYTES = 2**12
"""Bytes kept of the end of a process's error output."""

_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment that keeps threads and arenas from taking address space, which the memory limit is
meant for."""

_OUTCOMES = {-signal.SIGPROF: "seconds", -signal.SIGABRT: "memory", -signal.SIGSEGV: "levels", -signal.SIGBUS: "levels"}


class TrialProcess:
    """A process that tries one structure at a time. A trial that is cancelled or exceeds its limits
    ends the process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_over = False
        self._errors = b""
        self._reading = asyncio.get_running_loop().create_task(self._read_errors())

    @classmethod
    async def start(cls, terms: dict[str, Any], tokenizer: bytes) -> TrialProcess:
        """Start a process and wait until it is ready. OSError, RuntimeError or TimeoutError if it
        does not get ready."""
        process = await asyncio.create_subprocess_exec(
            *module_command("slipstream.structures.child"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**os.environ, **_ENVIRONMENT},
        )
        started = cls(process)
        try:
            if (
                await started._ask([encode_frame(terms), encode_length(len(tokenizer)), tokenizer], _START_SECONDS)
                is None
            ):
                raise RuntimeError(await started._why_it_ended())
        except BaseException:
            await started.close()
            raise
        return started

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """True if the process can take another structure."""
        return not self._is_over and self._process.returncode is None

    async def run(self, structure: Structure, wall_seconds: float) -> dict[str, Any]:
        """Try a structure and return its outcome, which is also "seconds", "memory", "levels" or
        "ended"."""
        try:
            asked = encode_frame({"kind": structure.kind.value, "source": structure.source})
            answer = await self._ask([asked], wall_seconds)
        except TimeoutError:
            self.kill()
            return {"outcome": "waited"}
        except BaseException:
            self.kill()
            raise
        if answer is None:
            self._is_over = True
            return {"outcome": _OUTCOMES.get(await self._process.wait(), "ended")}
        self._is_over = bool(answer.pop("is_last", False))
        return answer

    def kill(self) -> None:
        """Kill the process."""
        self._is_over = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """Kill the process and wait for its end."""
        self.kill()
        await self._process.wait()
        await self._reading

    @property
    def _reader(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None
        return self._process.stdout

    async def _ask(self, frames: Sequence[bytes], seconds: float) -> dict[str, Any] | None:
        """Return the process's answer, or None if the process ended instead."""
        try:
            async with asyncio.timeout(seconds):
                for frame in frames:
                    await self._write(frame)
                head = await self._reader.readexactly(LENGTH_BYTES)
                answer: dict[str, Any] = json.loads(await self._reader.readexactly(decode_length(head)))
                return answer
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _write(self, frame: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        for start in range(0, len(frame), _PIECE_BYTES):
            pipe.write(frame[start : start + _PIECE_BYTES])
            await pipe.drain()

    async def _read_errors(self) -> None:
        """Keep the end of the error output until the process is gone. A full pipe that is not read
        would block it."""
        assert self._process.stderr is not None
        while more := await self._process.stderr.read(_KEPT_ERROR_BYTES):
            self._errors = (self._errors + more)[-_KEPT_ERROR_BYTES:]

    async def _why_it_ended(self) -> str:
        code = await self._process.wait()
        await self._reading
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return f"the process ended during its start with {code}" + (f": {lines[-1]}" if lines else "")
