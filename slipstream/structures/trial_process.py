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
"""In which a process must be ready, on a machine with much else to do."""

_PIECE_BYTES = 2**18
"""Of a tokenizer, which may have 30 MB: what is written at once is copied on the event loop."""

_KEPT_ERROR_BYTES = 2**12
"""Of the end of what a process writes as its errors."""

_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Threads and arenas would take address space that the memory limit is meant for."""

_OUTCOMES = {-signal.SIGPROF: "seconds", -signal.SIGABRT: "memory", -signal.SIGSEGV: "levels", -signal.SIGBUS: "levels"}


class TrialProcess:
    """Tries one structure at a time. A try that is cancelled, or that its limits end, ends the
    process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_over = False
        self._errors = b""
        self._reading = asyncio.get_running_loop().create_task(self._read_errors())

    @classmethod
    async def start(cls, terms: dict[str, Any], tokenizer: bytes) -> TrialProcess:
        """A process that is ready. OSError, RuntimeError or TimeoutError if it does not become
        so."""
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
        """The process's id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it may be asked again."""
        return not self._is_over and self._process.returncode is None

    async def run(self, structure: Structure, wall_seconds: float) -> dict[str, Any]:
        """What came of a structure: its outcome is also "seconds", "memory", "levels" or
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
        """End it now."""
        self._is_over = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End it and see it ended."""
        self.kill()
        await self._process.wait()
        await self._reading

    @property
    def _reader(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None
        return self._process.stdout

    async def _ask(self, frames: Sequence[bytes], seconds: float) -> dict[str, Any] | None:
        """Its answer; None if it ended instead."""
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
        """Keep the end of them, until the process is gone. Unread, a full pipe would hold it up."""
        assert self._process.stderr is not None
        while more := await self._process.stderr.read(_KEPT_ERROR_BYTES):
            self._errors = (self._errors + more)[-_KEPT_ERROR_BYTES:]

    async def _why_it_ended(self) -> str:
        code = await self._process.wait()
        await self._reading
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return f"it ended at its start with {code}" + (f": {lines[-1]}" if lines else "")
