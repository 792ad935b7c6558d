"""Run a service's module so that it ends with its parent: ``python -m slipstream.cli.child PARENT_PID MODULE [FLAG ...]``.

The wish is the child's own (Linux: PR_SET_PDEATHSIG), since a parent that talks gRPC must not run code between fork and
exec.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for SIGTERM when the parent is gone, even by SIGKILL; then become the module."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(sys.argv[1]):
            sys.exit("the parent is gone already")
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
