"""Run a service's module so that it ends with its parent:
``python -P -m slipstream.cli.child PARENT_PID MODULE [FLAG ...]``.

The wish is the child's own, since a parent that talks gRPC must not run code between fork and exec.
"""

from __future__ import annotations

import runpy
import sys

from slipstream.parent import end_with


def main() -> None:
    """Ask to end with the parent; then become the module."""
    end_with(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
