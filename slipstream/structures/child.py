"""The process that tries structures: ``python -P -m slipstream.structures.child``, told by its
standard input.

Its first message has the limits, its second is the tokenizer, each further one a structure. It
answers each with what came of it. A structure that takes too long or too much memory ends the
process: the service sees by which signal.
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
"""Turns that run go first."""
_PAGE = resource.getpagesize()


def main() -> None:
    """Try structures until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's interrupt is the service's to act on
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICENESS)
    on_deep_stack(_serve)  # all of it on one such thread: its stack is there before memory is limited


def _serve() -> None:
    pipe, answers = sys.stdin.buffer, sys.stdout.buffer
    terms, tokenizer = read_frame(pipe), read_bytes(pipe)
    if terms is None or tokenizer is None:
        return
    compiler = StructureCompiler(tokenizer, terms["vocabulary_size"], terms["end_token_ids"])
    warm = _tried(compiler, Structure(StructureKind.REGEX, "a"))  # the tokenizer's memory is no structure's
    first = _resident()
    answers.write(encode_frame(warm))
    answers.flush()
    while (asked := read_frame(pipe)) is not None:
        structure = Structure(StructureKind(asked["kind"]), asked["source"])
        answer = _bounded(compiler, structure, terms["seconds"], terms["memory_mib"])
        # What the allocator keeps would be there for the next structure, beyond its limit.
        is_last = _resident() - first > terms["memory_mib"] * _MIB // 2
        answers.write(encode_frame({**answer, "is_last": is_last}))
        answers.flush()
        if is_last:
            return


def _bounded(compiler: StructureCompiler, structure: Structure, seconds: float, memory_mib: int) -> dict[str, Any]:
    """What comes of a structure. The timer and the allocator end the process where it takes too
    much."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if size := _virtual():  # elsewhere than on Linux the limit is not known to hold, and cannot be set
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
        return {"outcome": "invalid", "why": error.violations[0].description}
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
    """Bytes of this process, as Linux counts them; elsewhere 0, and the memory limit does not
    hold."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[index]) * _PAGE
    except OSError:
        return 0


if __name__ == "__main__":
    main()
