"""The process that tries structures, controlled by its standard input: ``python -P -m
slipstream.structures.child``.

Its first message has the limits, the second is the tokenizer, and each further one a structure. It
answers each with the outcome. A structure that takes too long or too much memory ends the process,
and the service sees which signal ended it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling.structure_compiler import StructureCompiler, on_deep_stack
from slipstream.sampling.structure_errors import InvalidStructureError, StructureUnsupportedError
from slipstream.structures.frames import encode_frame, read_bytes, read_frame

_MIB = 2**20
_NICENESS = 5
"""Niceness of the process, so that running turns go first."""
_PAGE = resource.getpagesize()


def main() -> None:
    """Try structures until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service handles a terminal's interrupt
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICENESS)
    on_deep_stack(_serve)  # everything runs on one such thread, whose stack exists before memory is limited


def _serve() -> None:
    pipe, answers = sys.stdin.buffer, sys.stdout.buffer
    terms, tokenizer = read_frame(pipe), read_bytes(pipe)
    if terms is None or tokenizer is None:
        return
    compiler = StructureCompiler(tokenizer, terms["vocabulary_size"], terms["end_token_ids"])
    warm = _tried(
        compiler, Structure(StructureKind.REGEX, "a")
    )  # the tokenizer's memory must not count as the structure's
    first = _resident()
    answers.write(encode_frame(warm))
    answers.flush()
    while (asked := read_frame(pipe)) is not None:
        structure = Structure(StructureKind(asked["kind"]), asked["source"])
        answer = _bounded(compiler, structure, terms["seconds"], terms["memory_mib"])
        # The next structure could use what the allocator keeps, beyond its limit.
        is_last = _resident() - first > terms["memory_mib"] * _MIB // 2
        answers.write(encode_frame({**answer, "is_last": is_last}))
        answers.flush()
        if is_last:
            return


def _bounded(compiler: StructureCompiler, structure: Structure, seconds: float, memory_mib: int) -> dict[str, Any]:
    """Try a structure within the limits. The timer and the allocator end the process if it takes
    too much."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if size := _virtual():  # the limit is set only on Linux, where it holds
        wanted = size + memory_mib * _MIB
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return _tried(compiler, structure)
    except MemoryError:
        return {"outcome": "memory"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if size:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _tried(compiler: StructureCompiler, structure: Structure) -> dict[str, Any]:
    before = _resident()
    try:
        compiled = compiler.compile(structure)
    except InvalidStructureError as error:
        return {"outcome": "invalid", "why": error.violations[0].description, "rule": error.rule}
    except StructureUnsupportedError as error:
        return {"outcome": "unsupported", "why": str(error)}
    byte_count = max(0, _resident() - before)
    del compiled
    return {"outcome": "compiled", "byte_count": byte_count}


def _virtual() -> int:
    return _statm(0)


def _resident() -> int:
    return _statm(1)


def _statm(index: int) -> int:
    """Return bytes of this process as Linux counts them. Elsewhere it returns 0, and the memory
    limit does not hold."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[index]) * _PAGE
    except OSError:
        return 0


if __name__ == "__main__":
    main()
