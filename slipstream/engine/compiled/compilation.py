"""Compile what a model's steps need, shared between the processes that start on this machine.

``python -m slipstream.engine.compiled.compilation verifier`` compiles ahead of time what any model
needs, beginning with a verifier's half; ``draft`` begins with the other.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial

from slipstream.compilation import Unit, compile_shared
from slipstream.engine.compiled.following import following
from slipstream.engine.compiled.forward import compiled_walk
from slipstream.engine.compiled.keeping import unit
from slipstream.engine.compiled.tiles import place_of
from slipstream.sampling.choose import choosing_unit
from slipstream.sampling.kernel import compiled_folder


def compile_for(kinds: Sequence[str], *, choosing_first: bool) -> None:
    """Compile the walk through the layers, tiles of these ``kinds``, choosing, and what follows
    each step of several."""
    compile_shared(units_for(kinds, choosing_first=choosing_first), compiled_folder())


def units_for(kinds: Sequence[str], *, choosing_first: bool) -> list[Unit]:
    """Return the units of `compile_for`. A draft and a verifier that start together begin with
    different halves."""
    walk, choosing = unit("walk", compiled_walk), choosing_unit()
    # What follows a step is made of the functions that choose.
    after = [choosing, unit("following", following, lock=choosing.lock)]
    units = [*after, walk] if choosing_first else [walk, *after]
    return [*units, *(unit(kind, partial(place_of, kind)) for kind in dict.fromkeys(kinds))]


def main() -> None:
    """Compile for models of any numbers. Lines of progress go to standard output."""
    from slipstream.engine.compiled.backend import all_kinds

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    for kinds in all_kinds():
        compile_for(kinds, choosing_first=sys.argv[1] == "draft")


if __name__ == "__main__":
    main()
