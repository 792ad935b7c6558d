"""One forward, compiled as a whole: the walk through the layers, and the team of threads that takes it.

Threads are those of the OpenMP team that torch has, so that there is one team: all take the walk, each its share of columns,
rows or heads, and wait for one another between phases. Without OpenMP's library there is one thread.

What has been compiled is kept: beside the source, or in the user's cache (`NUMBA_CACHE_DIR` names another). Numba takes it for
current as long as the file of the function is that has been compiled; so this one has the hash of all that it is made of in its
closure, and nothing else of it is kept.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
import torch
from numba import carray, types

from slipstream.engine.compiled.lanes import LANES, compiled, pointer, read_integer
from slipstream.engine.compiled.phases import (
    ADDED,
    GATED,
    STORED,
    attend,
    embed,
    multiply_rows,
    normalize,
    place_row,
    width_of,
)
from slipstream.engine.compiled.products import TILE_COLUMNS
from slipstream.engine.compiled.records import LAYER, STEP


def _openmp() -> Any:
    """The library that torch computes with; None if it has one without GNU's names."""
    home = Path(torch.__file__).parent
    for path in (*home.glob("lib/lib*omp*"), *home.with_name("torch.libs").glob("lib*omp*"), "libgomp.so.1"):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


_OPENMP = _openmp()
_ALONE = [ctypes.CFUNCTYPE(ctypes.c_int)(answer) for answer in (lambda: 0, lambda: 1)]
"""What stands for its functions where it is not there: thread 0 of 1."""


def _named(name: str, symbol: str, result: Any, alone: int = 0) -> Any:
    """One of its functions, for compiled code."""
    function = _ALONE[alone] if _OPENMP is None else getattr(_OPENMP, symbol)
    llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return types.ExternalFunction(name, result())


_wait_for_all = _named("slipstream_wait_for_all", "GOMP_barrier", types.void)
_thread_number = _named("slipstream_thread_number", "omp_get_thread_num", types.int32)
_thread_count = _named("slipstream_thread_count", "omp_get_num_threads", types.int32, alone=1)


@compiled
def _wait(threads: int) -> None:
    if threads > 1:
        _wait_for_all()


@compiled
def _attention(step: Any, layer: Any, share: tuple[int, int, int], rows: range) -> None:
    """A layer's first half, from normalised inputs on."""
    _, threads, scratch = share
    attended = step.head_count * step.head_size
    projected = attended + 2 * step.kv_head_count * step.head_size
    multiply_rows(
        step,
        share,
        step.inputs,
        step.hidden_size,
        step.row_count,
        layer.projection,
        layer.projection_bias,
        projected // TILE_COLUMNS,
        STORED,
        step.projected,
        projected * 4,
    )
    _wait(threads)
    for row in rows:
        place_row(step, layer, row, scratch)
    _wait(threads)
    attend(step, layer, share)
    _wait(threads)
    multiply_rows(
        step,
        share,
        step.inputs,
        attended,
        step.row_count,
        layer.output,
        layer.output_bias,
        step.hidden_size // TILE_COLUMNS,
        ADDED,
        step.residual,
        step.hidden_size * 4,
    )


@compiled
def _feed_forward(step: Any, layer: Any, share: tuple[int, int, int]) -> None:
    """A layer's second half, from normalised inputs on."""
    multiply_rows(
        step,
        share,
        step.inputs,
        step.hidden_size,
        step.row_count,
        layer.gate_up,
        layer.gate_up_bias,
        step.feed_forward // LANES,
        GATED,
        step.gated,
        step.feed_forward * width_of(step),
    )
    _wait(share[1])
    multiply_rows(
        step,
        share,
        step.gated,
        step.feed_forward,
        step.row_count,
        layer.down,
        layer.down_bias,
        step.hidden_size // TILE_COLUMNS,
        ADDED,
        step.residual,
        step.hidden_size * 4,
    )


@compiled
def _walk(step: Any, layers: Any) -> None:
    thread: Any = np.int64(_thread_number())
    threads: Any = np.int64(_thread_count())
    share = (thread, threads, step.scratch + thread * step.scratch_bytes)
    rows = range(step.row_count * thread // threads, step.row_count * (thread + 1) // threads)
    for row in rows:
        embed(step, row)
    for index in range(step.layer_count):
        layer = layers[index]
        for row in rows:
            normalize(step, row, layer.attention_norm, row)
        _wait(threads)
        _attention(step, layer, share, rows)
        _wait(threads)
        for row in rows:
            normalize(step, row, layer.feed_norm, row)
        _wait(threads)
        _feed_forward(step, layer, share)
        _wait(threads)
    wanted = step.wanted_count
    for index in range(wanted * thread // threads, wanted * (thread + 1) // threads):
        normalize(step, read_integer(step.wanted + 8 * index), step.final_norm, index)
    _wait(threads)
    multiply_rows(
        step,
        share,
        step.inputs,
        step.hidden_size,
        wanted,
        step.head,
        0,
        step.vocabulary_columns // TILE_COLUMNS,
        STORED,
        step.logits,
        step.vocabulary_columns * 4,
    )


def _made_of() -> str:
    """A hash of the sources of all that is compiled."""
    folder = Path(__file__).parent
    sources = [folder / f"{name}.py" for name in ("forward", "lanes", "phases", "products", "quantised", "records")]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


def _entry_of(made_of: str) -> Callable[..., Any]:
    def entry(place: Any) -> None:
        made_of  # noqa: B018 # in the closure, so that Numba tells one from another
        step = carray(place, (1,), STEP)[0]
        _walk(step, carray(pointer(step.layers), (step.layer_count,), LAYER))

    return entry


@functools.cache
def _entry() -> Any:
    """What OpenMP may call. Compiling it for the first time on a machine takes ten seconds or so."""
    signature, function = types.void(types.voidptr), _entry_of(_made_of())
    try:
        return numba.cfunc(signature, nopython=True, cache=True)(function)
    except RuntimeError:  # there is no folder to keep it in: compiled anew by each process then
        return numba.cfunc(signature, nopython=True)(function)


def forward(step: np.ndarray, threads: int) -> None:
    """One forward as ``step`` says, a `STEP`, by so many threads; it must not be moved meanwhile."""
    entry, place = _entry(), ctypes.c_void_p(step.ctypes.data)
    if _OPENMP is None or threads == 1:
        entry.ctypes(place)
    else:
        _OPENMP.GOMP_parallel(ctypes.c_void_p(entry.address), place, threads, 0)
