"""``slipstream compile``: compilation ahead of the first start."""

from __future__ import annotations

from slipstream.cli.compile import compile_halves
from slipstream.cli.ending import fail, progress
from slipstream.extras import require


def compile_ahead() -> None:
    """Compile now, for this processor, what the first start of a model would compile.

    It takes about half a minute on two cores. Later starts load the result. Run it again after an
    upgrade of Slipstream.
    """
    require("slipstream", "compiled")
    with progress.status("starting two compilers") as status:
        ended = compile_halves(status.update if progress.is_terminal else progress.print)
    if ended:
        fail(f"the compiler ended with status {ended}: see above")
    progress.print("compiled for this processor")
