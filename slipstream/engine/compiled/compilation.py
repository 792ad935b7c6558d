"""Compile what a model's steps need, shared between the processes that start on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.compilation import compile_shared
from slipstream.engine.compiled.following import following
from slipstream.engine.compiled.forward import compiled_walk
from slipstream.engine.compiled.keeping import unit
from slipstream.engine.compiled.tiles import place_of
from slipstream.sampling.choose import choosing_unit
from slipstream.sampling.kernel import compiled_folder


def compile_for(kinds: Sequence[str], *, multi_step: bool) -> None:
    """Compile the walk through the layers, tiles of these ``kinds`` and choosing. For a
    draft, which is ``multi_step``, compile what follows each of its steps too.

    A draft and a verifier that start together begin with different halves.
    """
    walk = unit("walk", compiled_walk)
    units = [choosing_unit(), unit("following", following), walk] if multi_step else [walk, choosing_unit()]
    units.append(unit("tiles", lambda: [place_of(kind) for kind in kinds], *kinds))
    compile_shared(units, compiled_folder())
