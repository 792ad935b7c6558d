"""First steps of a model service's process, before its large packages are imported."""

from __future__ import annotations

from slipstream.extras import require
from slipstream.garbage import pause_collection
from slipstream.home import borrow_home


def prepare_imports(program: str) -> None:
    """Exit with one line if an extra is missing; keep the garbage collector away from imports, and
    find a home folder."""
    require(program, "compiled")
    pause_collection()
    borrow_home()
