"""Compile ahead of time, in two processes that share the work."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from slipstream.interpreter import module_command

_MODULE = "slipstream.engine.compiled.compilation"


def compile_halves(report: Callable[[str], object]) -> int:
    """Compile what models need for this processor. ``report`` is told how far it is. Return 0, or
    the status of a process that failed."""
    with (
        subprocess.Popen(module_command(_MODULE, "draft"), stdout=subprocess.DEVNULL) as other,
        subprocess.Popen(module_command(_MODULE, "verifier"), stdout=subprocess.PIPE, text=True) as leader,
    ):
        assert leader.stdout is not None
        for line in leader.stdout:
            report(line.rstrip())
    return leader.returncode or other.returncode
