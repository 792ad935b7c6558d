"""Compiled functions are kept: beside the source, or in the user's cache (`NUMBA_CACHE_DIR` names
another).

Numba takes what it kept for current as long as the file of the function is that has been compiled.
So each has the hash of all that it may be made of in its closure, and nothing else of it is kept.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from slipstream.compilation import Unit, unit_name
from slipstream.engine.compiled.products import BF16_INSTRUCTION
from slipstream.sampling import kernel
from slipstream.sampling.rule import NUMBERS

_MADE_OF = """
    block_types byte_dots following forward lanes matrices phases processor products quantised records team tiles
""".split()


def made_of() -> str:
    """Return a hash of the sources of all that is compiled, and of what Numba does not know.

    That is whether the system lets us use all of the processor, and which sampling fields there
    are."""
    return hashlib.sha256(
        b"".join([BF16_INSTRUCTION.encode(), repr(NUMBERS).encode(), *(file.read_bytes() for file in _sources())])
    ).hexdigest()


def _sources() -> list[Path]:
    folder = Path(__file__).parent
    return [*(folder / f"{name}.py" for name in _MADE_OF), Path(kernel.__file__)]


def unit(kind: str, compile_it: Callable[[], object], lock: str | None = None) -> Unit:
    """Return a part of what a model's steps need as work that processes share. The ``lock``, by
    default the kind, is the same for all sources and processors: they share index files."""
    return Unit(unit_name(kind, _sources(), *kernel.MACHINE, made_of()), compile_it, lock or kind)


def keep(signature: Any, function: Callable[..., Any]) -> Any:
    """The C function that one is compiled to; it has `made_of` in its closure."""
    compile_it = functools.partial(numba.cfunc, signature, nopython=True)
    try:
        return compile_it(cache=True)(function)
    except RuntimeError:  # there is no folder to keep it in: each process then compiles for itself
        return compile_it()(function)
